"""Everything stands in pyproject.toml. Here a wheel is refused: the names at the top (`kernels`) are those of other packages."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

REFUSAL = (
    "Meridian is not offered as a wheel: its folders (kernels, suites, ...) would take names that other packages have; "
    "use a checkout and `pip install -e .`, which gives the command `meridian`"
)


class NoWheel(bdist_wheel):
    """Refuses to build. An editable install asks it for the metadata alone."""

    def run(self) -> None:
        raise SystemExit(REFUSAL)


setup(cmdclass={"bdist_wheel": NoWheel})
