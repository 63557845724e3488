"""What the documents of a tree point to, and whether it is there.

`problems(root)` looks at every Markdown file: links and pictures must lead to
files of the tree, and anchors to headings, as GitHub names them. Addresses of
the web are not asked. Files that Markdown names as code (`router/main.cc`), and
pages that any text file names (docs/security.md), must be there, too.
"""

import os
import pathlib
import re
import urllib.parse

# Not ours, or made by a build.
SKIPPED_FOLDERS = {".git", "build", "node_modules", "__pycache__"}
CODE_SUFFIXES = (".h", ".cc", ".cu", ".md", ".py", ".proto", ".yml", ".yaml",
                 ".mjs", ".sh", ".cmake", ".json", ".service")

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
# [text](target "title") and ![text](target); the text may hold one level of
# brackets, as a picture that is a link does.
LINK = re.compile(
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?)*\]"
    r"\(\s*<?([^\s()<>]*)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[([^\]]+)\]:\s*<?(\S+?)>?(?:\s+\".*\")?\s*$",
                        re.MULTILINE)
HTML = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
SETEXT = re.compile(r"^ {0,3}(?:=+|-+)\s*$")
# Pages of other projects that comments name, and where pages are made up.
FOREIGN_PAGES = {"docs/gguf.md"}
MADE_UP = pathlib.Path("tests/docs")
PAGE = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md(?:#([\w-]+))?")


def without_fences(text):
    """Lines, with those of fenced code empty."""
    lines, fence = [], None
    for line in text.split("\n"):
        found = FENCE.match(line)
        if fence is None and found:
            fence = found[1]
            lines.append("")
        elif fence is not None:
            # As long as the first, of the same sign, and nothing behind it.
            if found and found[1].startswith(fence) and (
                    line.strip() == found[1]):
                fence = None
            lines.append("")
        else:
            lines.append(line)
    return lines


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[`*]", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    """Of a Markdown file."""
    found, counts = set(), {}
    lines = without_fences(text)
    headings = []
    for i, line in enumerate(lines):
        heading = HEADING.match(line)
        if heading:
            headings.append(heading[1])
        elif i > 0 and lines[i - 1].strip() and SETEXT.match(line):
            if not lines[i - 1].lstrip().startswith(("|", "-", "#", ">")):
                headings.append(lines[i - 1].strip())
    for heading in headings:
        name = slug(heading)
        count = counts.get(name, 0)
        counts[name] = count + 1
        found.add(name if count == 0 else f"{name}-{count}")
    found.update(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", text))
    return found


def links(text):
    """(target, line) of each link and picture of a Markdown file."""
    # Code spans are blanked, so that what only looks like a link is none.
    plain = "\n".join(without_fences(text))
    plain = CODE_SPAN.sub(lambda m: re.sub(r"[^\n]", "x", m[0]), plain)
    for pattern in (LINK, HTML):
        for match in pattern.finditer(plain):
            yield match[1], plain.count("\n", 0, match.start()) + 1
            # A picture inside of a link's text.
            for inner in LINK.finditer(match[0][1:match[0].rfind("](")]):
                yield inner[1], plain.count("\n", 0, match.start()) + 1
    for match in DEFINITION.finditer(plain):
        yield match[2], plain.count("\n", 0, match.start()) + 1


def named_files(text, folders):
    """(path, line) of files of the tree's own folders named as code."""
    plain = "\n".join(without_fences(text))
    for span in CODE_SPAN.finditer(plain):
        path = span[2].strip()
        if (path.endswith(CODE_SUFFIXES) and path.split("/")[0] in folders and
                re.fullmatch(r"[\w./-]+", path)):
            yield path, plain.count("\n", 0, span.start()) + 1


def text_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            path = pathlib.Path(folder) / name
            if path.is_symlink() or not path.is_file() or (
                    path.stat().st_size > 2 << 20):
                continue
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                pass


class Tree:

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.texts = dict(text_files(self.root))
        self.known = {}
        self.folders = {
                p.name for p in self.root.iterdir()
                if p.is_dir() and p.name not in SKIPPED_FOLDERS
        }

    def anchors(self, path):
        if path not in self.known:
            self.known[path] = anchors(self.texts.get(path, ""))
        return self.known[path]

    def wrong(self, page, target):
        """Why a link of `page` is wrong; None when it is right."""
        parts = urllib.parse.urlsplit(target)
        if parts.scheme or parts.netloc:
            return None
        if not target:
            return "a link to nothing"
        path = page
        if parts.path:
            path = (page.parent / urllib.parse.unquote(parts.path)).resolve()
            if not path.is_relative_to(self.root):
                return f"{target} is outside of the tree"
            if not path.exists():
                return f"{target}: there is no {path.relative_to(self.root)}"
        if parts.fragment and path.suffix == ".md":
            if parts.fragment not in self.anchors(path):
                return (f"{target}: {path.relative_to(self.root)} has no "
                        f"heading #{parts.fragment}")
        return None

    def problems(self):
        for path, text in self.texts.items():
            name = path.relative_to(self.root)
            if path.suffix == ".md":
                for target, line in links(text):
                    why = self.wrong(path, target)
                    if why:
                        yield f"{name}:{line}: {why}"
                for target, line in named_files(text, self.folders):
                    if not (self.root / target).exists():
                        yield f"{name}:{line}: there is no {target}"
            if MADE_UP in name.parents:
                continue
            for match in PAGE.finditer(text):
                page, _, anchor = match[0].partition("#")
                line = text.count("\n", 0, match.start()) + 1
                file = self.root / page
                if page in FOREIGN_PAGES:
                    continue
                if not file.exists():
                    yield f"{name}:{line}: there is no {page}"
                elif anchor and anchor not in self.anchors(file):
                    yield f"{name}:{line}: {page} has no heading #{anchor}"


def problems(root):
    return sorted(set(Tree(root).problems()))
