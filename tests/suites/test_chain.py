"""The hash chain: the published digests, every single change found at its line, and what a kill leaves behind."""

import hashlib
import json
import multiprocessing

import pytest

from results_io import UserError
from suites.log import chain

FIRST = "4a885c2ac3c96be74b98f1f2f790ebdfd2c6dfb81336f11f1db958cea401d8d7"
SECOND = "ed03735ff0e01421823aeabf1ebe77573d372699a81d18d112869ccc6d99cd6d"


def written(path, n=6):
    with chain.Writer(path) as writer:
        for k in range(n):
            writer.append([{"v": f"text {k} é\n"}])
    return path


def test_the_digests_of_the_specification(tmp_path):
    # O31 gives the beginnings and ends of both. One digit of the end of the first is wrong there (e401d8d7): the second, which
    # continues it, agrees at both ends, and could not if the first were another
    assert FIRST.startswith("4a885c2a") and FIRST.endswith("401d8d7")
    assert SECOND.startswith("ed03735f") and SECOND.endswith("c6d99cd6d")
    assert chain.link(chain.ZEROS, {"seq": 0, "v": "a"}) == FIRST
    assert chain.link(FIRST, {"seq": 1, "v": "b"}) == SECOND
    with chain.Writer(tmp_path / "log") as writer:
        assert writer.append([{"v": "a"}, {"v": "b"}]) == [{"seq": 0, "v": "a"}, {"seq": 1, "v": "b"}]
        assert writer.head == chain.ChainEnd(2, SECOND)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["prev"] for line in lines] == [chain.ZEROS, FIRST]
    assert [line["hash"] for line in lines] == [FIRST, SECOND]
    assert chain.verify(tmp_path / "log") == chain.ChainEnd(2, SECOND)


def test_a_chain_by_hand(tmp_path):
    path = written(tmp_path / "log", 3)
    head = "0" * 64
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        record = json.loads(line)
        assert record.pop("prev") == head
        claimed = record.pop("hash")
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        head = hashlib.sha256(f"{head}{text}".encode()).hexdigest()
        assert claimed == head
    assert chain.verify(path).hash == head


def test_batches_make_no_difference(tmp_path):
    records = [{"v": k} for k in range(5)]
    for name, sizes in (("one", (5,)), ("many", (2, 1, 2))):
        rest = list(records)
        for size in sizes:
            with chain.Writer(tmp_path / name) as writer:
                writer.append([rest.pop(0) for _ in range(size)])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


@pytest.mark.parametrize("line", range(6))
def test_a_change_is_found_at_its_line(tmp_path, line):
    path = written(tmp_path / "log")
    lines = path.read_bytes().split(b"\n")
    lines[line] = lines[line].replace(b"text", b"fact")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=rf"line {line + 1} does not match its hash"):
        chain.verify(path)
    with pytest.raises(UserError, match=rf"line {line + 1} "):
        chain.Writer(path)


def test_every_byte_counts(tmp_path):
    path = written(tmp_path / "log", 2)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(UserError, match=r"line [123] "):
            chain.verify(path)


@pytest.mark.parametrize(("change", "line"), [("drop", 3), ("swap", 3), ("repeat", 4)])
def test_lines_missing_moved_or_doubled(tmp_path, change, line):
    path = written(tmp_path / "log")
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "drop":
        del lines[2]
    elif change == "swap":
        lines[2], lines[3] = lines[3], lines[2]
    else:
        lines.insert(3, lines[2])
    path.write_bytes(b"".join(lines))
    with pytest.raises(UserError, match=f"line {line} has the number"):
        chain.verify(path)


def test_a_torn_last_line_is_set_aside_wherever_it_was_cut(tmp_path):
    path = written(tmp_path / "log", 3)
    content = path.read_bytes()
    last = content[:-1].rfind(b"\n") + 1
    for cut in range(last + 1, len(content)):
        copy = tmp_path / f"log-{cut}"
        copy.write_bytes(content[:cut])
        with pytest.raises(UserError, match="line 3 is torn"):
            chain.verify(copy)
        with chain.Writer(copy) as writer:
            writer.append([{"v": "more"}])
        records = chain.read(copy)
        torn = content[last:cut]
        assert records[2] == {
            "seq": 2,
            "kind": "recovery",
            "torn_bytes": len(torn),
            "torn_sha256": hashlib.sha256(torn).hexdigest(),
        }
        assert [record.get("v") for record in records] == ["text 0 é\n", "text 1 é\n", None, "more"]
        assert copy.with_name(f"{copy.name}.torn").read_bytes() == torn + b"\n"


def test_a_chain_of_nothing_but_a_torn_line(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"seq":0')
    with chain.Writer(path):
        pass
    assert [record["kind"] for record in chain.read(path)] == ["recovery"]


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "log"
    with chain.Writer(path) as writer:
        writer.append([{"v": 1}])
        with pytest.raises(UserError, match="written by another run"):
            chain.Writer(path)
        process = multiprocessing.get_context("fork").Process(target=_open, args=(path,))
        process.start()
        process.join()
        assert process.exitcode == 7
    with chain.Writer(path) as writer:  # the lock went with the writer
        assert writer.head.lines == 1


def _open(path):
    try:
        chain.Writer(path)
    except UserError:
        raise SystemExit(7) from None


def test_what_cannot_be_a_record(tmp_path):
    with chain.Writer(tmp_path / "log") as writer:
        with pytest.raises(ValueError, match="seq"):
            writer.append([{"seq": 5}])
        with pytest.raises(ValueError, match="JSON compliant"):
            writer.append([{"v": float("nan")}])
        writer.append([{"v": 0.1 + 0.2, "text": "line\u2028end\r\n"}])
    assert chain.read(tmp_path / "log") == [{"seq": 0, "v": 0.1 + 0.2, "text": "line\u2028end\r\n"}]


def test_no_file_is_an_empty_chain(tmp_path):
    assert chain.verify(tmp_path / "none") == chain.ChainEnd()
    assert chain.read(tmp_path / "none") == []
