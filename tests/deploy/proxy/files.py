"""Comparison of the files of deploy/haproxy with the sources."""

import pathlib
import re

from haproxy import SHIPPED

ROOT = pathlib.Path(__file__).resolve().parents[3]


def seconds(text):
    """A time as HAProxy writes it."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def time_limits():
    """Time limits of methods that have more time than others, as (service, method, seconds)."""
    limits = (ROOT / "libs/model/src/limits.rs").read_text()
    for source in sorted((ROOT / "services").glob("*/src/rpc.rs")):
        table = re.search(r"PUBLIC_PATIENCE\b.*?\];", source.read_text(), re.DOTALL)
        for method, time in re.findall(r'\("/mycora\.v1\.(\w+/\w+)", Duration::from_secs\(([^"]*?)\)\)', table[0] if table else ""):
            for name, value in re.findall(r"pub const (\w+): u32 = ([\d_]+);", limits):
                time = time.replace(f"{name} as u64", value)
            yield source.parts[-3], method, sum(int(part) for part in time.replace("_", "").split("+"))


def check_files(counts):
    """Checks that need no program."""
    text = (SHIPPED / "haproxy.cfg").read_text()
    sections = dict(re.findall(r"^backend (\S+)\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE))
    hard_stop = re.search(r"hard-stop-after (\S+)", text)[1]
    found = list(time_limits())
    counts.check("calls that may take longer are found in the sources", "" if len(found) > 5 else f"there are {found}")
    for service, method, limit in found:
        given = re.search(r"timeout server (\S+)", sections.get(service, "")) or re.search(r"timeout server (\S+)", text)
        shortest = min(seconds(given[1]), seconds(hard_stop))
        cut = f"the proxy cuts it after {given[1]}, and after a reload after {hard_stop}"
        # One that has as much time ends by itself, with its own error.
        counts.check(f"{method} may take {limit} s", "" if shortest >= limit else cut)
    sent = {file: re.findall(r"tcp-check .*", (SHIPPED / file).read_text()) for file in ("haproxy.cfg", "passthrough.cfg")}
    counts.check("both files check health in the same way", "" if len({tuple(lines) for lines in sent.values()}) == 1 else f"{sent}")
    pages = "".join(page.read_text() for page in sorted(SHIPPED.iterdir()))
    sources = "".join(page.read_text() for folder in ("services", "libs") for page in (ROOT / folder).rglob("*.rs"))
    for variable in sorted(set(re.findall(r"MYCORA_[A-Z_]+", pages))):
        counts.check(f"{variable} is a setting", "" if f'env = "{variable}"' in sources else "no program has it")
