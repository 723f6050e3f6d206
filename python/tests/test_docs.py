"""Every snippet of docs/python.md is run, one after the other, and answers what stands below it."""

import doctest
import re
import sys

import pytest

import lockwork
import lockwork.locks
from conftest import ROOT, Program, Server


@pytest.mark.parametrize("has_numpy", [True, False])
def test_the_guide_runs(tmp_path, monkeypatch, has_numpy):
    if has_numpy:
        pytest.importorskip("numpy")
    else:
        # As if it were not installed.
        monkeypatch.setattr(lockwork._columns, "numpy", None)
        monkeypatch.setitem(sys.modules, "numpy", None)
    guide = (ROOT / "docs/python.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", guide, re.S)
    needing = [snippet for snippet in snippets if "# needs numpy" in snippet]
    assert len(snippets) >= 6 and len(needing) == 1
    if not has_numpy:
        snippets = [snippet for snippet in snippets if snippet not in needing]
    monkeypatch.chdir(tmp_path)
    server = Server("--init", ROOT / "examples/bank.sql")
    service = Program("lockd", "--udp", "127.0.0.1:0", "--locks", "1000", "--fresh")
    try:
        lock_address = service.ready.split(" on ")[1].split()[0]
        monkeypatch.setenv("LOCKWORK_LOCKD", lock_address)
        text = "\n".join(snippets).replace("127.0.0.1:5433", server.address).replace("127.0.0.1:7400", lock_address)
        said = []
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        test = doctest.DocTestParser().get_doctest(text, {}, "docs/python.md", "docs/python.md", 0)
        assert len(test.examples) > 15
        outcome = runner.run(test, out=said.append)
        assert outcome.failed == 0, "".join(said)
    finally:
        service.end()
        server.end()


def test_the_examples_of_the_package_run():
    for module in (lockwork, lockwork.locks):
        assert doctest.testmod(module).failed == 0


def test_the_types_are_those_of_the_code(tmp_path):
    api = pytest.importorskip("mypy.api")
    used = tmp_path / "used.py"
    used.write_text(
        "import lockwork\n"
        "with lockwork.open() as db:\n"
        "    reveal_type(db.execute('SELECT 1').rows)\n"
        "    reveal_type(db.call('f', 1).x)\n"
        "    reveal_type(db.call_many('f', [[1]]))\n"
        "    db.execute(1)\n"
    )
    said, errors, _ = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(used)])
    notes = re.findall(r'Revealed type is "(.*?)"', said)
    # Named as mypy has them, with or without the module of what is built in.
    notes = [note.replace("builtins.", "") for note in notes]
    assert notes == ["list[tuple[Any, ...]]", "Any", "dict[str, Any]"], said + errors
    assert "Argument 1 to \"execute\"" in said and "Found 1 error" in said, said + errors
