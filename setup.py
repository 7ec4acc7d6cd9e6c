"""All settings are in pyproject.toml. This file refuses to build a wheel, since other packages use its names (`kernels`)."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

REFUSAL = (
    "Meridian is not offered as a wheel: its folders (kernels, suites, ...) would take names that other packages have; "
    "use a checkout and `pip install -e .`, which gives the command `meridian`"
)


class NoWheel(bdist_wheel):
    """Refuses to build. An editable install needs it only for the metadata."""

    def run(self) -> None:
        raise SystemExit(REFUSAL)


setup(cmdclass={"bdist_wheel": NoWheel})
