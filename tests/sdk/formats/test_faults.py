from livetree.formats.faults import FormatError, kind_of, quoted


def test_a_fault_says_where_and_what():
    fault = FormatError("it has no mapping", record=3, offset=120)
    fault.title = "Trip"

    assert str(fault) == "record 3, byte 120 'Trip': it has no mapping"


def test_a_fault_names_its_line_where_that_is_the_place():
    assert str(FormatError("it is no object", line=7)) == "line 7: it is no object"


def test_a_fault_says_if_nothing_was_read_after_it():
    fault = FormatError("the file is cut off", record=2, rest_unread=True)

    assert str(fault) == "record 2: the file is cut off; nothing after it was read"


def test_a_fault_without_a_place_is_its_reason():
    assert str(FormatError("the file is empty")) == "the file is empty"


def test_texts_of_a_file_are_quoted_printable_and_short():
    assert quoted("a\nb") == r"'a\nb'"
    assert quoted("旅行") == "'旅行'"
    assert quoted("\ud800") == r"'\ud800'"
    assert len(quoted("x" * 1_000_000)) < 100


def test_kinds_have_the_names_that_json_users_know():
    values = [None, True, 1, 1.5, "", [], {}, b""]

    assert [kind_of(value) for value in values] == [
        *("null", "true or false", "a number", "a number", "a text", "a list", "an object"),
        "a Python bytes",
    ]
