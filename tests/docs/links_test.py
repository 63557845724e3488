"""The documents point to what is there: files, headings, pages; and links.py
sees it when they do not."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import links  # noqa: E402


class TreeTest(unittest.TestCase):
    def test_all_is_there(self):
        found = links.problems(ROOT)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_there_was_something_to_look_at(self):
        tree = links.Tree(ROOT)
        pages = {str(path.relative_to(ROOT)): text
                 for path, text in tree.texts.items() if path.suffix == ".md"}
        for page in ["README.md", "docs/operations.md", "deploy/README.md",
                     "docs/adr/README.md"]:
            self.assertIn(page, pages)
        targets = [target for text in pages.values()
                   for target, _ in links.links(text)]
        self.assertGreater(len(targets), 150)
        self.assertGreater(sum("#" in target for target in targets), 40)


class LinksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("docs/b.md", "# A `b` of *ours*: two\n\n## Twice\n\n"
                   "```\n# no heading\n```\n\n## Twice\n\nUnder\n=====\n")
        self.write("code/x.cc", "int x;\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def problems(self, text, name="docs/a.md"):
        self.write(name, text)
        return links.problems(self.root)

    def test_right_ones(self):
        self.assertEqual(self.problems("""# Here
[file](b.md) [up](../code/x.cc) [folder](../code) [web](https://a.b/c#d)
[own](#here) [its](b.md#a-b-of-ours-two) [one](b.md#twice)
[two](b.md#twice-1) [under](b.md#under) ![p](b.md "title")
[two
lines](b.md)
`[no](link.md)` and `code/x.cc`, `code/*.cc`, `elsewhere/x.cc`
```
[no](link.md)
```
[name]: b.md
"""), [])

    def test_wrong_ones(self):
        for text, why in {
                "[x](c.md)": "docs/a.md:1: c.md: there is no docs/c.md",
                "\n![x](c.png)": "docs/a.md:2: c.png: there is no docs/c.png",
                "[x](../../x)": "docs/a.md:1: ../../x is outside of the tree",
                "[x]()": "docs/a.md:1: a link to nothing",
                "[x](#there)":
                    "docs/a.md:1: #there: docs/a.md has no heading #there",
                "[x](b.md#twice-2)":
                    "docs/a.md:1: b.md#twice-2: docs/b.md has no heading "
                    "#twice-2",
                "[x](b.md#no-heading)":
                    "docs/a.md:1: b.md#no-heading: docs/b.md has no heading "
                    "#no-heading",
                "[a\nb](c.md)": "docs/a.md:1: c.md: there is no docs/c.md",
                "[`x`](c.md)": "docs/a.md:1: c.md: there is no docs/c.md",
                "[![p](c.png)](b.md)":
                    "docs/a.md:1: c.png: there is no docs/c.png",
                "[n]: c.md": "docs/a.md:1: c.md: there is no docs/c.md",
                '<img src="c.png">':
                    "docs/a.md:1: c.png: there is no docs/c.png",
                "see `code/y.cc`": "docs/a.md:1: there is no code/y.cc",
        }.items():
            with self.subTest(text):
                self.assertEqual(self.problems(text), [why])

    def test_pages_that_other_files_name(self):
        self.assertEqual(
            self.problems("# docs/b.md#twice, https://a/docs/c.md\n"
                          "# docs/c.md\n# docs/b.md#thrice\n", "code/run.sh"),
            ["code/run.sh:2: there is no docs/c.md",
             "code/run.sh:3: docs/b.md has no heading #thrice"])


if __name__ == "__main__":
    unittest.main()
