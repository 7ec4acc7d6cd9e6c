from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from calibrations.statistics import INSUFFICIENT_REASONS, Insufficient


def test_reasons_are_the_closed_list_of_the_specification() -> None:
    assert len(INSUFFICIENT_REASONS) == 20
    with pytest.raises(ValueError, match="unknown reason 'too_few'"):
        Insufficient("too_few")


def test_reason_and_detail_survive_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(Insufficient("n_heads", "3 heads")))
    assert (error.reason, error.detail, str(error)) == ("n_heads", "3 heads", "n_heads: 3 heads")
    assert str(Insufficient("n_heads")) == "n_heads"


def test_importing_the_statistics_loads_no_torch_and_no_pingouin() -> None:
    code = "import sys, calibrations.statistics; print({'torch', 'pingouin', 'ruptures', 'sklearn'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
