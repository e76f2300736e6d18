"""Settings of Sphinx for the documentation site."""

from pygments.lexers.special import TextLexer

project = "libkvstore"
extensions = ["myst_parser"]
myst_heading_anchors = 5
html_theme = "furo"
# Its light style has one colour for both sides of a difference.
pygments_style = "default"
html_title = "libkvstore"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = html_copy_source = False
html_domain_indices = html_use_index = False


def setup(app):
    """Bytes of messages are shown as they are."""
    app.add_lexer("hex", TextLexer)
