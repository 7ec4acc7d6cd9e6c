"""Rows out of CSV, JSONL and memory: the same whatever they are written in, and one sentence for whatever cannot be read."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from circuits.tasks.file import Options, read, rows, rows_sha256
from circuits.tasks.file.rows import PairRow
from results_io import UserError

PAIR = {"clean": "Mary and John gave it to", "corrupted": "Anna and Paul gave it to", "answer": "Mary", "wrong": "John"}
HEADER = "clean,corrupted,answer,wrong\n"
LINE = "Mary and John gave it to,Anna and Paul gave it to,Mary,John\n"


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def as_csv(records: list[dict], delimiter: str = ",", end: str = "\n") -> str:
    """Lists and objects as JSON text, absent keys as empty cells."""
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end)
    writer.writerow(names)
    for record in records:
        cells = (record.get(name, "") for name in names)
        writer.writerow([cell if isinstance(cell, str) else json.dumps(cell) for cell in cells])
    return text.getvalue()


def as_jsonl(records: list[dict]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def refusal(path: Path, options: Options | None = None) -> str:
    with pytest.raises(UserError) as error:
        read(path, options)
    sentence = str(error.value)
    assert "\n" not in sentence and ". " not in sentence.replace(str(path), "").replace("...", "")
    return sentence.replace(f"{path}, line ", "LINE ").replace(str(path), "FILE")


MANY = [
    {**PAIR, "answer": ["Mary", "Kate"], "wrong": ["John"], "template": "gave", "cluster": "a", "split": "evaluation"},
    {
        "clean": 'He said "I am\nhere, Mary" to',
        "corrupted": 'He said "I am\nhere, Anna" to',
        "answer": "naïve",
        "wrong": "東京",
        "template": "said",
        "cluster": "b",
        "split": "discovery",
    },
]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_same_rows_in_every_format_are_the_same(tmp_path, delimiter, end, mark) -> None:
    table = read(written(tmp_path / "a.csv", mark + as_csv(MANY, delimiter, end)))
    lines = read(written(tmp_path / "b.jsonl", mark + as_jsonl(MANY)))
    memory = read(MANY)
    assert [row.content for row in table] == [row.content for row in lines] == [row.content for row in memory]
    assert len({rows_sha256(found) for found in (table, lines, memory)}) == 1
    assert table[0].answers == ("Mary", "Kate") and table[1].wrong == ("東京",)
    assert [row.line for row in table] == [2, 3] and [row.line for row in lines] == [1, 2]  # the quoted line break


def test_lists_as_python_writes_them_and_what_pandas_has_for_nothing_are_the_same_rows(tmp_path) -> None:
    """pandas writes a list into a CSV file as Python does, and has NaN or NA where a cell is empty."""
    pandas = pytest.importorskip("pandas")
    several = [{**PAIR, "answer": ["Mary", "O'Neil"]}, {**PAIR, "clean": "Ann and Bo gave it to", "answer": ["Ann"]}]
    expected = rows_sha256(read(several))
    frame = pandas.DataFrame(several)
    frame.to_csv(tmp_path / "pandas.csv", index=False)
    assert '"[\'Mary\', ""O\'Neil""]"' in (tmp_path / "pandas.csv").read_text()
    assert rows_sha256(read(tmp_path / "pandas.csv")) == expected
    assert rows_sha256(read(frame)) == rows_sha256(read(iter(several))) == expected
    without = [{name: value for name, value in one.items() if name != "wrong"} for one in several]
    for nothing in (float("nan"), None, pandas.NA, ""):
        records = [
            {**one, "wrong": nothing, "template": nothing, "roles": nothing, "split": nothing} for one in without
        ]
        assert rows_sha256(read(records)) == rows_sha256(read(without)), nothing


def test_what_is_no_list_stays_a_word(tmp_path) -> None:
    text = HEADER + "".join(f"{word} gave it to,Anna gave it to,{word},John\n" for word in ("[sic]", "[]", "[a b"))
    assert [row.answers for row in read(written(tmp_path / "a.csv", text))] == [("[sic]",), ("[]",), ("[a b",)]


def test_a_cell_of_a_million_brackets_is_not_given_to_the_parser_of_python(monkeypatch) -> None:
    """That parser took 8 s and a gigabyte for it; JSON's gives up at once."""
    asked = []
    monkeypatch.setattr(rows.ast, "literal_eval", lambda text: asked.append(len(text)) or ["Anna"])
    assert rows._list_in("[" * 1_000_000) is None and asked == []
    assert rows._list_in("['Anna'") == ["Anna"] and asked == [7]


@pytest.mark.parametrize("given", [None, 5, {"clean": ["a"]}, "no such file", b"bytes"])
def test_what_is_no_records_is_one_sentence(given) -> None:
    with pytest.raises(UserError, match=r"give a list of mappings, or a table of pandas|does not exist; give a CSV"):
        read(given)


def test_lines_and_rows_are_counted_past_blank_lines_and_quoted_breaks(tmp_path) -> None:
    text = f'\n{HEADER}"a\nb","c\nd",e,f\n\n\n{LINE}'
    assert [(row.number, row.line) for row in read(written(tmp_path / "a.csv", text))] == [(1, 3), (2, 8)]


def test_the_digest_is_of_what_the_rows_say(tmp_path) -> None:
    """Not of the file's place or format; of every word, of the order, and of the split."""
    first = rows_sha256(read([PAIR, {**PAIR, "clean": "x"}]))
    assert rows_sha256(read([{**PAIR, "clean": "x"}, PAIR])) != first
    changed = [
        {**PAIR, name: value}
        for name, value in (("answer", "Kate"), ("cluster", "c"), ("split", "held_out"), ("roles", {"io": "Mary"}))
    ]
    assert len({rows_sha256(read([one])) for one in [PAIR, *changed]}) == 5


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("Paris", ("Paris",)),
        ("Paris|Lyon", ("Paris", "Lyon")),
        ('["Paris", "Ly|on"]', ("Paris", "Ly|on")),
        (" Paris", (" Paris",)),
        ("[", ("[",)),
        ("[Paris]", ("[Paris]",)),
        ("Paris|Paris", ("Paris",)),
        ("[1, 2]", ("1", "2")),
    ],
)
def test_answers_of_a_cell(tmp_path, cell, answers) -> None:
    (row,) = read(written(tmp_path / "a.csv", as_csv([{**PAIR, "answer": cell}])))
    assert row.answers == answers


def test_role_spans_by_characters_and_by_words(tmp_path) -> None:
    by_object = {**PAIR, "roles": {"io": "Mary", "s1": [9, 13]}}
    by_column = {**PAIR, "role.io": "Mary", "role.s1": [9, 13]}
    for record in (by_object, by_column):
        for path in (
            written(tmp_path / "a.csv", as_csv([record])),
            written(tmp_path / "a.jsonl", as_jsonl([record])),
        ):
            assert read(path)[0].spans == {"io": (0, 4), "s1": (9, 13)}


def test_roles_of_the_corrupted_prompt_are_part_of_the_rows_only_where_there_are_some(tmp_path) -> None:
    plain, named = {**PAIR, "roles": {"who": "Mary"}}, {"corrupted_roles": {"who": "Anna"}}
    assert (
        rows_sha256(read([PAIR])) == "6bb3a1f8f9094626a95917ed65f45bf11a74391fb7946c9c30f98aeba189eb39"
        and "corrupted_spans" not in read([plain])[0].content
    )
    table = read(written(tmp_path / "a.csv", as_csv([{**PAIR, "role.who": "Mary", "corrupted_role.who": "Anna"}])))
    lines = read(written(tmp_path / "b.jsonl", as_jsonl([{**plain, **named}])))
    assert table[0].corrupted_spans == lines[0].corrupted_spans == {"who": (0, 4)}
    assert rows_sha256(table) == rows_sha256(lines) != rows_sha256(read([plain]))
    for records, sentence in (
        ([{**PAIR, **named}], "names the role who in its corrupted prompt alone; name it in the clean one too"),
        ([{**plain, "corrupted_roles": {"who": "Eve"}}], "has the role who at 'Eve', which the corrupted prompt"),
        ([{**plain, "corrupted_roles": 3}], "has corrupted_roles 3; write an object"),
    ):
        with pytest.raises(UserError, match=sentence):
            read(records)


def test_columns_may_stand_elsewhere(tmp_path) -> None:
    """A name, a nested one, an element by another column's value; the rest of the file is not read."""
    record = {
        "prompt": PAIR["clean"],
        "other": {"prompt": PAIR["corrupted"], "key": "B"},
        "choices": ["John", "Mary"],
        "key": 1,
        "by_letter": {"A": "x", "B": "John"},
        "more": None,
    }
    chosen = {"clean": "prompt", "corrupted": "other.prompt", "answer": "choices[key]", "wrong": "by_letter[other.key]"}
    options = Options.of({"columns": chosen})
    (row,) = read(written(tmp_path / "a.jsonl", as_jsonl([record])), options)
    assert row == PairRow(1, 1, PAIR["clean"], PAIR["corrupted"], ("Mary",), ("John",))
    found = refusal(tmp_path / "a.jsonl", Options.of({"columns": {**chosen, "wrong": "by_letter[other.nokey]"}}))
    assert found == "LINE 1: has no column other.nokey (it has: prompt, key); correct task.columns"
    found = refusal(tmp_path / "a.jsonl", Options.of({"columns": {**chosen, "wrong": "choices[other.key]"}}))
    assert found == "LINE 1: has no choices[other.key]: other.key is 'B'; correct task.columns"


FAULTS = {
    "": "FILE is empty; write a header such as clean,corrupted,answer and one prompt pair a line below it",
    "\n \n": "FILE is empty; write a header such as clean,corrupted,answer and one prompt pair a line below it",
    HEADER: "FILE has a header and no rows; write one prompt pair a line below it",
    "clean,answer\na,b\n": "LINE 1 has no column corrupted (it has: clean, answer); add it with a second prompt, whose "
    "answer is another, since patching compares two runs, or say with task.columns={corrupted: <its column>} which one it is",
    ",clean,corrupted,answer\n0,a,b,c\n": "LINE 1 has a column without a name; take it away (pandas writes its index so",
    "clean,corrupted,answer,\na,b,c,\n": "LINE 1 has a column without a name",
    "Clean,Corrupted,Answer\na,b,c\n": "LINE 1 has no column clean (it has: Clean, Corrupted, Answer); call Clean clean",
    "clean|corrupted|answer\na|b|c\n": "LINE 1 has no column clean (it has: clean|corrupted|answer); the first line names the "
    "columns, with a comma, a semicolon or a tab",
    f"{'x' * 5000} y,{'z' * 5000}\na,b\n": "LINE 1 has no column clean (it has: ...); add it with the prompt",
    "clean,corrupted,answer,colour\na,b,c,d\n": "LINE 1 has the unknown column 'colour'; use",
    "clean,corrupted,answer,clean\na,b,c,d\n": "LINE 1 has the column 'clean' twice; keep one of them",
    HEADER + LINE + "a,b,c\n": "LINE 3: has 3 cells, and the header has 4; put a cell",
    HEADER + LINE + 'a,"b,c,d\n': "LINE 3: is no CSV (unexpected end of data); close every double quote",
    HEADER + LINE + 'a,"b"x,c,d\n': "LINE 3: is no CSV (',' expected after '\"'); close every double quote",
    HEADER + ",b,c,d\n": "LINE 2: has no clean prompt; write into its clean the prompt that the answer continues",
    HEADER
    + "a,,c,d\n": "LINE 2: has no corrupted prompt; write into its corrupted a second prompt, whose answer is another",
    HEADER + "a,b,,d\n": "LINE 2: has no answer; write into its answer the word that continues the clean prompt",
    HEADER + "a,  ,c,d\n": "LINE 2: has a corrupted prompt of spaces alone",
    HEADER + "a,b,c||d,e\n": "LINE 2: has answer 'c||d', in which a word is empty; write words with one | between two",
    HEADER + "a,b,c,|\n": "LINE 2: has wrong '|', in which a word is empty; write words with one | between two of them",
    HEADER + 'a,b,"[""c"", """"]",d\n': 'LINE 2: has answer \'["c", ""]\', in which a word is empty; take it out',
    "clean,corrupted,answer,split\na,b,c,test\n": "LINE 2: has the split 'test'; use discovery, evaluation, held_out, reference",
    "clean,corrupted,answer,split\na,b,c,evaluation\nd,e,f,\n": "LINE 3: has no split, and line 2 has one; give every row",
    "clean,corrupted,answer,roles\na,b,c,x\n": "LINE 2: has roles that are not JSON",
    "clean,corrupted,answer,role.io\na b a,x,c,a\n": "LINE 2: has the role io at 'a', which the clean prompt contains 2 times; "
    "give its characters, the first time [0, 1]",
    "clean,corrupted,answer,role.io\naaa,x,c,aa\n": "LINE 2: has the role io at 'aa', which the clean prompt contains 2 times",
    "clean,corrupted,answer,role.io\na b,x,c,d\n": "LINE 2: has the role io at 'd', which the clean prompt",
    'clean,corrupted,answer,role.io\na b,x,c,"[1, 4]"\n': "LINE 2: has the role io at [1, 4], outside its 3 characters; use 0 <=",
    'clean,corrupted,answer,role.io\na b,x,c,"[1, 1]"\n': "LINE 2: has the role io at [1, 1], outside its 3 characters; use 0 <=",
    "clean,corrupted,answer,role.end\na b,x,c,a\n": "LINE 2: names a role 'end', which every prompt has anyway",
    "clean,corrupted,answer,role.io\na,x,c,a\nb,y,d,\n": "LINE 3: has the role io at ''; write a part of the clean prompt",
    HEADER + "a\0,b,c,d\n": "LINE 2: holds a NUL character",
    HEADER
    + 'a, "b, b", c, d\n': "LINE 2: has 5 cells, and the header has 4; put a cell that holds the separator or a line break "
    "into double quotes, with no space before them",
    ",,,\n": "FILE has only empty cells; write a header such as clean,corrupted,answer and one prompt pair a line below it",
    '""\n': "FILE has only empty cells",
    ";;": "FILE has only empty cells",
    f"clean,corrupted,answer,roles\na,b,c,{'[' * 100_000}\n": "LINE 2: has roles that are not JSON (it is nested too deep)",
    f'clean,corrupted,answer\na,b,"[0x{"f" * 50_000}, 5]"\n': "LINE 2: has a number of more than 20 digits as its answer; write",
    f'clean,corrupted,answer,role.io\na,b,c,"[0x{"f" * 50_000}, 5]"\n': "LINE 2: has the role io at a value of thousands of",
    f"clean,corrupted,answer,role.io\n{'a' * 300_000},x,c,{'a' * 150_000}\n": "LINE 2: has the role io at 'aaa",
    "sep=;\n" + HEADER.replace(",", ";") + "a;b;c;d\n": "LINE 1: sep=; is a line of Excel's own; take it away",
}


def test_a_byte_order_mark_that_joining_files_left_is_no_part_of_a_row(tmp_path) -> None:
    both = as_jsonl([PAIR]) + "\ufeff" + as_jsonl([{**PAIR, "answer": "Anna"}])
    assert [row.answers for row in read(written(tmp_path / "a.jsonl", both))] == [("Mary",), ("Anna",)]
    assert len(read(written(tmp_path / "a.csv", f"\ufeff\ufeff{HEADER}{LINE}"))) == 1


@pytest.mark.parametrize(("text", "sentence"), FAULTS.items(), ids=range(len(FAULTS)))
def test_what_is_wrong_with_a_table_is_said_with_its_line(tmp_path, text, sentence) -> None:
    assert refusal(written(tmp_path / "a.csv", text)).startswith(sentence)


LINES = {
    "": 'FILE is empty; write one JSON object a line, such as {"clean": "...", "corrupted": "...", "answer": "..."}',
    "\n \n": "FILE is empty; write one JSON object a line",
    "[1, 2]\n": 'LINE 1: is no JSON object; write one JSON object a line, such as {"clean": "...", "corrupted": "...", "an',
    '[\n {"clean": 1}\n]': "FILE is one JSON list; write one object a line (JSONL), as pandas does with to_json(path, orient=",
    as_jsonl([PAIR]) + "3\n": "LINE 2: is no JSON object; write one JSON object a line",
    as_jsonl([PAIR])
    + "{clean: 1}\n": "LINE 2: is no JSON (Expecting property name enclosed in double quotes at character 2); write one object",
    '{"clean": \n': "LINE 1: is no JSON (Expecting value at character 11); write one object a line",
    as_jsonl([PAIR]) + '{"clean": "a"} x\n': "LINE 2: is no JSON (Extra data at character 16); write one object a line",
    f'{{"answer": {"9" * 5000}}}': "LINE 1: is no JSON (it holds a number of thousands of digits); write one object a line",
    '{"clean": "a", "clean": "b"}\n': "LINE 1: is no JSON (the key 'clean' is there twice); write one object a line",
    '{"clean": NaN}\n': "LINE 1: is no JSON (NaN is no value of JSON); write one object a line",
    as_jsonl([{**PAIR, "clean": 3}]): "LINE 1: has clean 3, which is no text; write it in quotation marks",
    as_jsonl([{**PAIR, "answer": 3.5}]): "LINE 1: has answer 3.5; write a word in quotation marks, or a list of them",
    as_jsonl(
        [{**PAIR, "answer": [True]}]
    ): "LINE 1: has answer True; write a word in quotation marks, or a list of them",
    as_jsonl(
        [{**PAIR, "answer": []}]
    ): "LINE 1: has no answer; write into its answer the word that continues the clean prompt",
    as_jsonl([{**PAIR, "wrong": ["", ""]}]): "LINE 1: has wrong ['', ''], in which a word is empty; take it out",
    as_jsonl([{**PAIR, "answer": {}}]): "LINE 1: has answer {}; write a word in quotation marks, or a list of them",
    as_jsonl([{**PAIR, "clean": "\ud800"}]): "LINE 1: has half of a character in clean",
    as_jsonl([{**PAIR, "roles": [1]}]): "LINE 1: has roles [1]; write an object such as",
    as_jsonl(
        [{**PAIR, "roles": {"a": "Mary"}, "role.a": "John"}]
    ): "LINE 1: gives the role 'a' in two columns; keep one",
    as_jsonl([{**PAIR, "roles": {"a b": "Mary"}}]): "LINE 1: names a role 'a b'; use letters, digits and underscores",
    "[" * 100_000: "LINE 1: is no JSON (it is nested too deep); write one object a line",
    as_jsonl(
        [{**PAIR, "answer": 10**20}]
    ): "LINE 1: has a number of more than 20 digits as its answer; write it in quotation",
    as_jsonl([{**PAIR, "cluster": -(10**20)}]): "LINE 1: has a number of more than 20 digits as its cluster",
}


@pytest.mark.parametrize(("text", "sentence"), LINES.items())
def test_what_is_wrong_with_a_line_of_json_is_said(tmp_path, text, sentence) -> None:
    assert refusal(written(tmp_path / "a.jsonl", text)).startswith(sentence)


LONG = "x" * 1_000_000
LONG_NAMES = {
    f"clean,corrupted,answer,{LONG}\na,b,c,d\n": "LINE 1 has the unknown column 'xxx",
    f"clean,corrupted,answer,{LONG},{LONG}\na,b,c,d,e\n": "LINE 1 has the column 'xxx",
    f"{' ' * 500_000}clean {LONG},b\na,b\n": "LINE 1 has no column clean (it has: clean ...)",
    f"clean,corrupted,answer,role.{LONG}\na,b,c,d\n": "LINE 2: has the role xxx",
    f'clean,corrupted,answer,roles\na,b,c,"{{""{LONG}-"": 1}}"\n': "LINE 2: names a role 'xxx",
    f'clean,corrupted,answer,corrupted_roles\na,b,c,"{{""{LONG}"": 1}}"\n': "LINE 2: names the role xxx",
    f"clean,corrupted,answer,role.a,role.{LONG}\na,b,c,a,\n": "LINE 2: has the role xxx",
    f"clean,corrupted,answer,split\na,b,c,{LONG}\n": "LINE 2: has the split 'xxx",
}


@pytest.mark.parametrize(("text", "sentence"), LONG_NAMES.items(), ids=range(len(LONG_NAMES)))
def test_a_sentence_about_a_long_name_stays_short(tmp_path, text, sentence) -> None:
    said = refusal(written(tmp_path / "a.csv", text))
    assert said.startswith(sentence) and len(said) < 500


@pytest.mark.timeout(60)
def test_many_columns_and_keys_are_looked_through_once(tmp_path) -> None:
    """By their number: pairwise, 60,000 took minutes."""
    roles = {f"role.a{number}": [0, 1] for number in range(60_000)}
    (row,) = read(written(tmp_path / "a.csv", as_csv([{**PAIR, **roles}])))
    assert row.spans is not None and len(row.spans) == 60_000
    keys = ", ".join(f'"a{number}": 1' for number in range(60_000))
    said = refusal(written(tmp_path / "a.jsonl", f'{{{keys}, "a59999": 2}}'))
    assert said == "LINE 1: is no JSON (the key 'a59999' is there twice); write one object a line"


def test_a_part_is_counted_up_to_a_bound(tmp_path) -> None:
    for length, said in ((20, "contains 19 times; give"), (21, "contains 20 times or more; give")):
        text = f"clean,corrupted,answer,role.io\n{'a' * length},x,c,aa\n"
        assert said in refusal(written(tmp_path / "a.csv", text))


def test_a_file_without_end_is_refused_by_its_size(tmp_path) -> None:
    path = written(tmp_path / "a.csv", HEADER + LINE)
    with path.open("ab") as stream:
        stream.truncate(8 << 30)  # sparse
    assert refusal(path) == (
        "task.path=FILE has 8,589,934,592 bytes, and 268,435,456 are allowed; take fewer rows, or give them as task.dataset"
    )


def test_what_is_no_text_file_is_refused(tmp_path) -> None:
    assert refusal(tmp_path / "none.csv") == "task.path=FILE does not exist; give a CSV or JSONL file"
    assert refusal(tmp_path).startswith("task.path=FILE is a folder; give a CSV or JSONL file")
    latin = written(tmp_path / "latin.csv", (HEADER + LINE).encode() + b"caf\xe9,b,c,d\n")
    assert refusal(latin) == "LINE 3: the byte 0xe9 is not UTF-8; save the file as UTF-8"
    assert refusal(written(tmp_path / "wide.csv", (HEADER + LINE).encode("utf-16"))).startswith("LINE 1: is UTF-16")
    for name, start, sentence in (
        (
            "book.csv",
            b"PK\x03\x04\x14",
            "FILE is an Excel workbook or a ZIP archive; save the sheet as CSV, or unpack it",
        ),
        ("a.csv.gz", b"\x1f\x8b\x08", "FILE is packed by gzip; unpack it"),
        ("a.parquet", b"PAR1\x15", "FILE is Parquet; give the folder that it is in as task.dataset"),
    ):
        assert refusal(written(tmp_path / name, start + bytes(range(256)))) == sentence
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "task.path=FILE is a pipe or a device; write it to a file, and give that"
    with pytest.raises(
        UserError, match=r"a{40}.*\.\.\. cannot be read \(File name too long\); give a file that can be$"
    ):
        read("a" * 5000)


def test_a_file_without_a_known_ending_is_read_by_what_it_holds(tmp_path) -> None:
    for name, text in (("a", as_jsonl([PAIR])), ("b", HEADER + LINE), ("c.txt", HEADER + LINE)):
        (row,) = read(written(tmp_path / name, text))
        assert (row.clean, row.answers) == (PAIR["clean"], ("Mary",))


def test_a_long_cell_is_read(tmp_path) -> None:
    (row,) = read(written(tmp_path / "a.csv", f"{HEADER}{'word ' * 50_000}b,c,d,e\n"))
    assert len(row.clean) == 250_001


def test_a_word_in_a_long_cell_is_found_at_once() -> None:
    (row,) = read([{**PAIR, "clean": "ab" * 200_000 + "x", "roles": {"last": "bx"}}])
    assert row.spans == {"last": (399_999, 400_001)}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"align": "left"},
            "task.align=left is not done: padding on the right would put the answer of the shorter prompt",
        ),
        ({"align": "up"}, "task.align=up is unknown; use right or spans, or null"),
        ({"chat": 3}, "task.chat=3 is neither true nor false"),
        ({"space": "no"}, "task.space=no is neither true nor false"),
        ({"foil": "x"}, "task.foil=x is unknown; use corrupted_top or none"),
        ({"metric": "x"}, "task.metric=x is unknown; use logit_difference or probability_difference"),
        ({"corruption": "abc"}, "task.corruption=abc has no meaning for rows"),
        ({"columns": {"clean": "a"}}, "task.columns lacks corrupted; name clean, corrupted, answer"),
        ({"columns": {"x": "a"}}, "task.columns names 'x'; use clean"),
        ({"columns": {"clean": "a[b][c]", "corrupted": "b", "answer": "c"}}, "task.columns.clean=a[b][c] is no column"),
        ({"shares": {"evaluation": 1}}, "task.shares={'evaluation': 1} is no share above 0 for each of discovery"),
    ],
)
def test_options_that_are_not_possible_are_refused(asked, sentence) -> None:
    with pytest.raises(UserError) as error:
        Options.of(asked)
    assert str(error.value).startswith(sentence)
