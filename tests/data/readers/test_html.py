"""The visible text of a page."""

from docsplit.data.readers.html import text_of_page


def test_blocks_headings_and_what_nobody_sees():
    page = (
        "<html><head><title>A  page</title><style>p {}</style></head><body><h1>Sails</h1><p>Torn <b>sails</b>"
        "\n\nand ropes.</p><script>let x = 1</script><ul><li>One &amp; two</li></ul><h2></h2></body></html>"
    )
    assert text_of_page(page) == ("A page", "## Sails\n\nTorn sails and ropes.\n\nOne & two")
    assert text_of_page("no tags") == ("", "no tags")
    assert text_of_page("") == ("", "")


def test_marks_that_nothing_closes_are_no_tags_and_take_no_time():
    """The standard library would seek the end of each mark to the end of the page: for minutes."""
    assert text_of_page("<p>a <b>c</b> < 5 <!-- d <i>e</i> <f") == ("", "a c < 5 d e f")
    assert text_of_page("a<![ b]>c<![CDATA[d]]>e<![if x]>f") == ("", "acef")
    for mark in ("<a b='", "<!--", "<a", "</script"):
        title, text = text_of_page(f"<title>T</title>{mark * 100_000}")
        assert title == "T"
        assert "<" not in text
