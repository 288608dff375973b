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
