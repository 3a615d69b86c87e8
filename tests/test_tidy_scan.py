"""The readers of source text behind test_tidy find what they are there for."""

from __future__ import annotations

from pathlib import Path

import tidy_scan

SAMPLE = """
namespace di {
// { a comment's brace
struct alignas(64) Row { std::atomic<int> word{0}; static_assert(sizeof(int) == 4); };
class Wide : public Base {
 public:
  Wide(int a, int b) : a_{a}, b_(b) { call(); }
  ~Wide();
METHODS
  Wide& operator=(const Wide&) = delete;
  std::function<int(int)> hook = [](int x) { return x; };
 private:
  void hidden() { if (a_) { b_ = '}'; } }
  int a_, b_;
};
template <class T, class U>
auto longest(T t, U u) -> std::pair<T, U> {
LINES
  return {t, u};
}
}  // namespace di
"""


def test_the_scanner_finds_long_functions_and_large_classes(tmp_path: Path) -> None:
    """The C++ reader finds what it is there for: a long function, a class with many methods."""
    path = tmp_path / "sample.cc"
    methods = "".join(f"  int m{i}() const {{ return {i}; }}\n" for i in range(8))  # accessors
    methods += "  int two() {\n    return 2; }\n"
    methods += "".join(f"  void n{i}(int x) noexcept;\n" for i in range(8))
    path.write_text(SAMPLE.replace("METHODS\n", methods).replace("LINES\n", "  t++;\n" * 68))
    functions = dict(tidy_scan.native_functions(path))
    assert functions["longest"] == 72  # its template line included
    assert functions["hidden"] == functions["Wide"] == functions["m7"] == 1
    classes = dict(tidy_scan.native_classes(path))
    assert classes["Row"] == set()
    assert classes["Wide"] == {"two", "hidden", *(f"m{i}" for i in range(8)), *(f"n{i}" for i in range(8))}


def test_the_scanner_finds_names_of_classes(tmp_path: Path) -> None:
    """Nested ones, those in a function and behind an attribute; no declarations, enums and variables."""
    path = tmp_path / "names.h"
    path.write_text(
        "struct Later;\nenum class Kind { kOne };\ntemplate <class T>\nclass Box final : public Base<T> {\n"
        '  union Part { int a; };\n  struct Inner;\n};\nclass DI_CAPABILITY("lock") Lock {};\n'
        "class DI_SCOPED Guard {};\nstruct alignas(64) Box::Inner { Later* of; };\n"
        "void act() {\n  struct Local { int b; } one;\n  struct stat info {};\n}\n"
    )
    assert tidy_scan.native_class_names(path) == ["Box", "Part", "Lock", "Guard", "Inner", "Local"]


def test_the_scanner_finds_private_names(tmp_path: Path) -> None:
    """The check itself finds an attribute of another object, and tells a module's own names."""
    path = tmp_path / "sample.py"
    path.write_text("class A:\n    def _own(self): self._field = b._theirs + b._replace(x=1)\n_constant = A()._own\n")
    assert tidy_scan.private_uses(path) == [(2, "b._theirs"), (3, "A()._own")]
    assert tidy_scan.private_definitions(path) == {"_own", "_field", "_constant"}
