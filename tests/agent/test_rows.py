"""Each row of docs/compatibility.md's table, in each of its forms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent import compatibility_table
from tests.agent.rows import Row, check

# Of torch, about what the rows use on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]

CASES = [pytest.param(one, form, id=f"{one.name}-{form}") for one in compatibility_table.ROWS for form in one.forms]


@pytest.mark.parametrize(("one", "form"), CASES)
def test_a_row_of_the_table_holds(one: Row, form: str, attach: Any) -> None:
    check(one, form, attach)
