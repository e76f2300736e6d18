"""Pages of the interfaces of C, C++, Go and Python, in Markdown, from the comments of the sources."""

import re
import textwrap

import griffe


def entry(level, title, language, code, text):
    text = re.sub(r"(?<![\[(/\w])(docs/\S+?\.md)", r"[\1](\1)", text)
    fence = f"```{language}\n{code.strip()}\n```\n\n" if code.strip() else ""
    return f"{'#' * level} {title}\n\n{fence}{text.strip()}\n\n"


def signature(code):
    """A declaration without its body, attributes and initialisers of members."""
    code = re.sub(r"\[\[\w+\]\] |\b(static )?inline (?!constexpr)", "", code)
    depth = 0
    for at, letter in enumerate(code):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        initialises = re.match(r"\s+: ", code[at:]) and code[:at].endswith((")", "noexcept"))
        if depth == 0 and (letter == "{" or initialises):
            return code[:at].rstrip() + ";"
    return code


def declaration(lines, ends=(";", "}")):
    """The lines to the end of a declaration: outside of brackets, at one of these."""
    depth, taken = 0, []
    for line in lines:
        taken.append(line)
        code = re.sub(r'"[^"\n]*"|//.*|/\*.*?\*/', "", line).rstrip()
        depth += sum(map(code.count, "({")) - sum(map(code.count, ")}"))
        if depth == 0 and (code.startswith("#") or code.endswith(ends)):
            break
    return taken


def c_text(comment):
    """A comment of kvstore.h: parameters become a list, names of functions links."""
    text = re.sub(r"^ +\* ?", "", comment, flags=re.M).strip("\n")
    text = re.sub(r"\n*^@param (\w+) +", r"\n- `\1`: ", text, count=1, flags=re.M)
    text = re.sub(r"^@param (\w+) +", r"- `\1`: ", text, flags=re.M)
    text = re.sub(r"\n*^@return ", r"\n\n**Returns** ", text, flags=re.M)
    text = re.sub(r"\b(Threads|Complexity|Blocks): ", r"**\1:** ", text)
    text = re.sub(r"^ {4,}", "  ", text, flags=re.M)
    return c_links(text, "")


def c_links(text, page):
    return re.sub(r"\b(kv_\w+)\(\)", rf"[`\1()`]({page}#\1)", text)


def c_line(comment):
    """The comment of a member, on one line."""
    words = re.sub(r"^ +\*", "", comment[1], flags=re.M).split()
    return f"/* {' '.join(words)} */"


def c_chapter(text):
    """A chapter of the header's first comment: a list with numbers, or rows of a name and a text."""
    def row(match):
        words = re.sub(r" *\n *", " ", match[2])
        return f"| `{match[1]}` | {words} |\n"

    text = re.sub(r"^  +(\S.*?) {2,}(\S.*(?:\n {10,}.*)*)\n", row, text, flags=re.M)
    text = re.sub(r"((?:^\|.*\n)+)", r"\n| name | meaning |\n|---|---|\n\1", text, flags=re.M)
    return c_links(re.sub(r"^ (?=\d\.)", "", text, flags=re.M), "")


def c(header):
    first, rest = header.split("#ifndef KVSTORE_H", 1)
    first = re.sub(r"^ \* ?", "", first.removesuffix(" */\n"), flags=re.M)
    page = "# C reference\n\n`#include <kvstore.h>`; [c-api.md](docs/use/c-api.md) shows the calls in use.\n\n"
    chapters = re.split(r"^([A-Z]{5,})(?: \((.*)\))?\n", first, flags=re.M)[1:]
    for title, note, text in zip(*(iter(chapters),) * 3):
        page += entry(2, title.capitalize(), "", "", f"{note or ''}\n{c_chapter(text)}")
    # What other compilers see of an enumeration.
    rest = re.sub(r"^ *#(?!define).*\n|^ *: u?int32_t\n", "", rest, flags=re.M)
    types, functions = "", ""
    for match in re.finditer(r"^/\*\*\n(.*?)^ \*/\n", rest, flags=re.M | re.S):
        code = "\n".join(declaration(rest[match.end() :].splitlines()))
        text = c_text(match[1])
        name = re.search(r"^#define (\w+)|^(?:typedef )?(?:enum|struct) (\w+)|\b(kv_\w+)[)(;]", code)
        name = next(filter(None, name.groups()))
        if re.search(rf"^(?!typedef).*\b{name}\(", code):
            functions += entry(3, name, "c", signature(code), text)
            continue
        constants = re.findall(r"/\*\*\n(.*?)\*/\s*(\w+) = (-?\d+)", code, flags=re.S)
        if constants:
            rows = [f"| `{it}` | {value} | {c_text(about).strip()} |" for about, it, value in constants]
            rows = "\n".join(re.sub(r"\s*\n\s*", " ", row) for row in rows)
            text, code = f"{text}\n\n| constant | value | meaning |\n|---|---|---|\n{rows}", ""
        code = re.sub(r"/\*\*(.*?)\*/", c_line, code, flags=re.S)
        types += entry(3, name, "c", code, text)
    return page + "## Types and constants\n\n" + types + "## Functions\n\n" + functions


def cpp(header):
    """Declarations with comments; one without a comment belongs to the one before, or to its class."""
    header = re.sub(r"^namespace detail \{.*?^\}  // namespace detail$", "", header, flags=re.M | re.S)
    lines = header.split("\n")
    at = lines.index("")
    page = "# C++ reference\n\n" + "\n".join(line[4:] for line in lines[:at]) + "\n\n"
    comment, scope, hidden, entries, owner = [], "kv::", False, [], None
    while at < len(lines):
        line, inner = lines[at], lines[at].strip()
        at += 1
        if line == "};":
            scope, hidden, owner = "kv::", False, None
        elif inner in ("public:", "private:"):
            hidden = inner == "private:"
        elif inner.startswith("///"):
            comment.append(inner[4:])
        elif hidden or not inner or line.startswith(("#", "namespace", "}")) or inner.startswith("//"):
            comment = comment if inner else []
        else:
            taken = [line] if re.match(r"template <.*>$", inner) else []
            taken += declaration(lines[at - 1 + len(taken) :])
            kind = re.search(r"^(?:class|struct) (?:\[\[\w+\]\] )?(\w+)[^;]*?\{$", "\n".join(taken), re.M)
            start = taken.index(next(it for it in taken if it.endswith("{"))) + 1 if kind else len(taken)
            at += start - 1
            code = signature(textwrap.dedent("\n".join(taken[:start])))
            name = scope + (kind[1] if kind else cpp_name(code))
            if comment or not entries:
                text = c_links("\n".join(comment), "include/kvstore.h")
                entries.append([3 if owner else 2, name, "", text])
            target = entries[-1] if owner is None or entries[-1][1] == name else owner
            target[2] += code + "\n"
            comment = []
            if kind:
                scope, owner = f"kv::{kind[1]}::", entries[-1]
    return page + "".join(entry(level, f"`{name}`", "cpp", code, text) for level, name, code, text in entries)


def cpp_name(code):
    plain = re.sub(r"^template <.*?>\n", "", code, flags=re.S)
    found = re.search(r"(?:class|struct|using) (\w+)|(~?\w+|operator\W+)\s*[({;=]", plain)
    return (found[1] or found[2]).strip()


def go(text):
    """What `go doc -all` prints: declarations begin a line, and their comments are indented."""
    head, *sections = re.split(r"^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)\n", text, flags=re.M)
    head, about = head.split("\n", 1)
    path = head.split('"')[1]
    page = f"# Go reference\n\n```go\nimport kvstore \"{path}\"\n```\n" + re.sub("^# ", "## ", about, flags=re.M)
    for title, body in zip(sections[::2], sections[1::2]):
        page += f"## {title.capitalize()}\n\n"
        for item in re.split(r"^(?=(?:func|type|var|const) )", body, flags=re.M)[1:]:
            lines = item.strip("\n").split("\n")
            taken = declaration(lines, (")", "}")) if lines[0].endswith(("(", "{")) else lines[:1]
            group = re.search(r"^const \(.*?\w+ +(\w+) +=", item, flags=re.S)
            names = re.match(r"\w+ (?:\(\w* ?\*?(\w+)\) )?(\w*)", lines[0])
            name = f"Constants of {group[1]}" if group else ".".join(filter(None, names.groups()))
            level = 4 if title == "TYPES" and not item.startswith("type") else 3
            rest = textwrap.dedent("\n".join(lines[len(taken) :]))
            page += entry(level, name, "go", "\n".join(taken), rest)
    return page


def python(folder, modules):
    page = "# Python reference\n\n"
    for module in modules:
        found = griffe.load(module, search_paths=[folder])
        page += entry(2, f"`{module}`", "", "", found.docstring.value)
        members = [found[str(name)] for name in found.exports]
        members = [it.final_target if it.is_alias else it for it in members]
        # Functions, classes, errors.
        for it in sorted(members, key=lambda it: (it.is_class, it.name.endswith("Error"))):
            page += python_object(3, f"{module}.{it.name}", it)
    return page


def python_object(level, name, it):
    text = it.docstring.value if it.docstring else ""
    text = re.sub(r"((?:^(?:>>>|\.\.\.).*\n?)+)", r"```python\n\1\n```\n", text, flags=re.M)
    if it.is_attribute:
        return entry(level, f"`{name}`", "python", f"{it.name}: {it.annotation}" if it.annotation else "", text)
    if it.is_function:
        forms = it.overloads or [it]
        return entry(level, f"`{name}`", "python", "\n".join(form.signature() for form in forms), text)
    members = [each for each in it.members.values() if not each.name.startswith("_") and each.docstring]
    base = f"({', '.join(map(str, it.bases))})" if it.bases else ""
    below = (python_object(level + 1, f"{it.name}.{each.name}", each) for each in members)
    return entry(level, f"`{name}`", "python", f"class {it.name}{base}", text) + "".join(below)
