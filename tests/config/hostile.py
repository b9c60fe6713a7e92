"""Configurations that ask for more than they say: files by name.

The first file is the configuration. Each was, or is akin to, a way past a limit.
"""

_PYTHON = {
    # Widths and precisions
    "width of format": "a = ['{:>٩٩٩٩٩٩٩٩}'.format(1) for i in range(5)]",
    "precision": "a = [f'{1.5:.900000000f}' for i in range(5)]",
    "many fields": "a = [len(('{}' * 9999).format(*[1] * 9999)) for i in range(999)]",
    "one text in many fields": "s = 'x' * 9999\na = ('{s}' * 9999).format(s=s)",
    "braces by name": "d = {f'a{i}': 1 for i in range(20000)}\n"
    "a = ['{a1}'.format(**d) for i in range(90000)]",
    "width of an f-string": "a = f'{1:999999999}'",
    # Copies
    "copies of a dict": "d = {i: i for i in range(50000)}\n"
    "a = [d.copy() for i in range(99999)]",
    "joined dicts": "d = {i: 1 for i in range(9999)}\n"
    "a = [{**d, **d} for i in range(2000)]",
    "keywords": "d = {f'a{i}': 1 for i in range(20000)}\n"
    "a = [len(dict(**d)) for i in range(90000)]",
    "globals": "d = {f'a{i}': 1 for i in range(20000)}\n"
    "for i in range(90000):\n    globals().update(d)",
    "list times n": "a = [[0] * 90000 for i in range(9999)]",
    "text times n": "a = ['x' * 1000000 + str(i) for i in range(999)]",
    "slices of a list": "s = [1] * 90000\na = [s[i:] for i in range(9999)]",
    "unpacked lists": "s = [1] * 90000\nfor i in range(999): a = [*s, *s]",
    "sum": "a = sum([[1]] * 90000, [])",
    "zip": "r = list(range(9999))\na = zip(*[r] * 1000)",
    "f-strings": "s = 'x' * 500000\na = [f'{s}{s}' for i in range(999)]",
    "shown with escapes": "s = '\\U000e0001' * 99999\n"
    "a = [len(f'{s!a}{[s]}') for i in range(99)]",
    "shared lists": "a = [1]\n" + "a = [a, a]\n" * 16,
    "many dicts": "a = [{} for i in range(99999)]",
    "large numbers": "a = [(1 << 4095) + i for i in range(60000)]",
    # Searching and ordering
    "in a list": "s = list(range(90000))\na = [-1 in s for i in range(99999)]",
    "in a text": "s = 'ab' * 500000\na = ['ba' * 50 + 'c' in s for i in range(9999)]",
    "count": "s = [1] * 90000\na = [s.count(2) for i in range(99999)]",
    "insert": "s = [1] * 90000\nfor i in range(99999): s.insert(0, 1)",
    "pop": "s = [1] * 90000\nfor i in range(90000): s.pop(0)",
    "sort": "s = [i * 7919 % 90001 for i in range(50000)]\n"
    "a = [len(sorted(s)) for i in range(999)]",
    "max": "s = list(range(90000))\na = [max(s) + min(s) for i in range(9999)]",
    "equal lists": "s = [1] * 90000\nt = s[:]\na = [s == t for i in range(9999)]",
    "search from the end": "h = 'a' * 500000\nn = 'ab' + 'a' * 50000\n"
    "a = [len(h.rsplit(n)) for i in range(20)]",
    "strip": "h = 'a' * 1000000\nn = '😀一' * 200000 + 'a'\na = len(h.strip(n))",
    "replace with longer": "s = 'a' * 99999\na = s.replace('a', s)",
    "join": "s = 'a' * 99999\na = s.join(s)",
    "upper": "s = 'ΐ' * 90000\na = [len(s.upper()) for i in range(999)]",
    # Numbers
    "power": "a = 3 ** 10 ** 10",
    "powers": "a = [3 ** 2040 % 7 for i in range(99999)]",
    "products": "x = 1 << 2047\na = [x * x % 7 for i in range(60000)]",
    "to text": "x = (1 << 4095) - 1\na = [len(str(x)) for i in range(60000)]",
    "a long decimal": "x = '1' * 1000000\na = [float(x) for i in range(60)]",
    "a long literal": "a = [0x" + "f" * 200_000 + " // 3 for i in range(999)]",
    "rounded": "a = round(5, -10 ** 9)",
    "shifted": "a = 1 << 10 ** 9",
    "a long range": "a = list(range(10 ** 9)) + [range(10 ** 30)]",
    # Keys
    "tuples as keys": "a = {(i, -i): 1 for i in range(60000)}",
    "deep tuples as keys": "t = 1\nfor i in range(99999): t = (t,)\na = {t: 1}",
    "in itself": "a = []\na.append(a)",
    "doubled again and again": "a = [1]\n" + "a = [a, a]\n" * 60 + "b = str(a) == a",
    "deep lists compared": "t, u = 1, 1\nfor i in range(40000): t, u = [t], [u]\n"
    "a = t == u",
    # Statements and syntax
    "loops": "for i in range(99999):\n    for j in range(99999):\n        pass",
    "many scopes": "a = [x "
    + " ".join(f"for z{i} in [1]" for i in range(150))
    + " for x in range(99999) if x if x if x if x]",
    "a long text again and again": "a = [len('"
    + "_devrun_re" * 15_000
    + "') for i in range(99999)]",
    "a long name": "#_devrun_ref" + "x" * 250_000 + "\na = 1",
    "ones": "a = [" + "1," * 130_000 + "]",
    "fields of an f-string": "a = f'" + "{1}" * 80_000 + "'",
    "a call that is refused": "a = foo(" + "1," * 29_000 + ")",
    "brackets": "a = " + "[" * 190 + "]" * 190,
    "open brackets": "a = " + "{**{**{" * 60,
    "unknown methods": "a = 'x'.center(10 ** 9)",
}
_YAML = {
    "dicts": "a:\n" + "- {}\n" * 200_000,
    "ones": "a: [" + "1," * 500_000 + "]",
    "keys": "".join(f"a{i}: {i}\n" for i in range(70_000)),
    "deep dicts": "a:\n" + ("- " + "{a: " * 45 + "1" + "}" * 45 + "\n") * 4_000,
    "anchors": "a: [" + "".join(f"&a{i} 1," for i in range(90_000)) + "]",
    "merge keys": "a: &a {k: 1}\nb:\n  <<: [" + "*a," * 300_000 + "]",
    "merged mappings": "a: &a {"
    + ",".join(f"k{i}: 1" for i in range(900))
    + "}\nb:\n"
    + "- <<: *a\n" * 50_000,
    "a long number": "a: " + "1" * 500_000 + "." + "1" * 500_000,
    "comments": "# aaaa\n" * 149_000 + "a: 1",
    "references": "a: '" + "${env:HOME}" * 90_000 + "'",
}
_JSON = {
    "ones": '{"a":[' + "1," * 500_000 + "1]}",
    "keys": "{" + ",".join(f'"a{i}":1' for i in range(80_000)) + "}",
    "lines": "\n" * 1_000_000 + "{}",
    "long numbers": '{"a":[' + ("1" * 400 + ",") * 2500 + "1]}",
}
_ONE_REFERENCE = "{{_base_.a1}}"
_BASES = {
    "chain of ones": [
        (f"c{i}.py", f"_base_ = 'c{i + 1}.py'\na{i} = [" + "1," * 20_000 + "]")
        for i in range(90)
    ],
    "chain of comments": [
        (f"c{i}.yaml", f"_base_: c{i + 1}.yaml\n" + "#" * 1_000_000) for i in range(90)
    ],
    "chain of keys": [
        (
            f"c{i}.yaml",
            f"_base_: c{i + 1}.yaml\n" + "".join(f"b{j}: {i}\n" for j in range(3000)),
        )
        for i in range(60)
    ],
    "one base again and again": [
        ("c.yaml", "_base_: [" + "b.yaml," * 99 + "]"),
        ("b.yaml", "#" * 1_000_000),
    ],
    "itself": [("c.py", "_base_ = ['c.py'] * 90")],
    "references": [
        ("c.py", "_base_ = 'b.py'\na = [" + "_base_.a1," * 11_000 + "]"),
        ("b.py", "".join(f"a{i}=1\n" for i in range(14_000))),
    ],
    "references to a list": [
        ("c.yaml", "_base_: b.py\na: [" + f"{_ONE_REFERENCE}," * 70_000 + "]"),
        ("b.py", "a1 = [1] * 900"),
    ],
    "references in a text": [
        ("c.yaml", f"_base_: b.py\na: '{_ONE_REFERENCE * 70_000}'"),
        ("b.py", "a1 = 'x' * 1000000"),
    ],
}
_SUFFIXES = {".py": _PYTHON, ".yaml": _YAML, ".json": _JSON}

HOSTILE = {
    **{
        f"{suffix} {name}": {f"c{suffix}": text}
        for suffix, texts in _SUFFIXES.items()
        for name, text in texts.items()
    },
    **{f"_base_ {name}": dict(files) for name, files in _BASES.items()},
}
