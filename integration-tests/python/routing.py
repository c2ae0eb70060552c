"""Runs the routing evaluation and holds every line of it against its bar.

All runs are `warmpath sim`: virtual time, so the machine's own load changes nothing. Prints one
Markdown table row per line; `--json` keeps the figures, `--rows` the rows they come from, and
`--plots` the pictures.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
from collections import defaultdict

CONVERSATION = "mooncake_conversation_trace.jsonl.gz"
SYNTHETIC = "mooncake_synthetic_trace.jsonl.gz"
DOCUMENT_POLICIES = "prefix,round-robin,reference"


def runs(traces):
    """Name of a run -> flags of `warmpath sim`."""
    conversation = ["--trace", str(traces / CONVERSATION), "--slice", "second"]
    synthetic = ["--trace", str(traces / SYNTHETIC)]
    loads = ["--policy", "all", "--blocks", "5000,20000", "--rho", "0.8,1.0", "--seeds", "5"]
    b2b = ["--workload", "b2b-saas", "--blocks", "19208,14000", "--seeds", "5"]
    mixed = ["--workload", "mixed-gpus", *conversation, "--blocks", "5000,20000", "--seeds", "5"]
    table = {
        "uniform": ["--workload", "seed-uniform", "--policy", DOCUMENT_POLICIES, "--window", "48,72,96,192", "--seeds", "5"],
        "skewed": ["--workload", "seed-skewed", "--policy", DOCUMENT_POLICIES, "--window", "48,72,96,192", "--seeds", "5"],
        "uniform-tail": ["--workload", "seed-uniform", "--policy", "round-robin", "--evict", "tail"],
        "skewed-tail": ["--workload", "seed-skewed", "--policy", "round-robin", "--evict", "tail"],
        "documents": ["--workload", "seed-skewed", "--policy", "prefix,static-partition,reference",
                      "--documents", "18,20,30,50", "--seeds", "5"],
        "a40": ["--workload", "seed-a40", "--policy", "all", "--concurrency", "1,8,32", "--seeds", "5"],
        "conversation": [*conversation, *loads],
        "synthetic": [*synthetic, *loads],
        "b2b-off": [*b2b, "--decode", "off", "--policy", "prefix,least-load,consistent-hash-1,sglang-like"],
        "b2b-on": [*b2b, "--decode", "on", "--policy", "prefix"],
        "b2b-shown": [*b2b, "--decode", "on", "--shown-content", "--policy", "prefix"],
        "agent-loops": ["--workload", "agent-loops", "--policy", "prefix,round-robin,least-load,reference", "--seeds", "5"],
        "hot-prefix": ["--workload", "hot-prefix", "--policy", "prefix,least-load,sglang-like,reference", "--seeds", "5"],
        "outage": ["--workload", "outage", "--documents", "10,12",
                   "--policy", "prefix,longest-prefix,consistent-hash-1,sglang-like", "--seeds", "5"],
        "mixed": [*mixed, "--policy", "prefix,least-load"],
        "mixed-told": [*mixed, "--told-speeds", "--policy", "prefix"],
    }
    for decode in ("off", "on"):
        for factor in ("1.0", "0.5", "1.63"):
            table[f"capacity-{decode}-{factor}"] = [
                *b2b, "--decode", decode, "--policy", "prefix",
                "--believed-capacity", factor, "--skip-requests", "2000",
            ]
    return table


def plots(traces):
    """Name of a picture -> flags; each draws the time to first token against the load."""
    ladder = ["--policy", "prefix,least-load,round-robin,sglang-like,consistent-hash-2,power-of-two",
              "--rho", "0.5,0.65,0.8,0.9,1.0,1.1"]
    return {
        "routing-conversation": ["--trace", str(traces / CONVERSATION), "--slice", "second", *ladder],
        "routing-synthetic": ["--trace", str(traces / SYNTHETIC), *ladder],
    }


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def spread(values, form="{:.2f}"):
    values = list(values)
    return f"{form.format(mean(values))} [{form.format(min(values))} {form.format(max(values))}]"


def simulate(warmpath, flags, *output):
    # The table that it prints as well is not wanted here.
    subprocess.run([warmpath, "sim", *flags, "--quiet", *output], check=True, stdout=subprocess.DEVNULL)


class Rows:
    """The rows of one run."""

    def __init__(self, rows):
        self.rows = rows

    def of(self, policy, **params):
        """Rows of a policy at one point, in the order of their seeds."""
        def fits(row):
            return all(abs(float(row["params"][key]) - value) < 1e-9 for key, value in params.items())
        found = [row for row in self.rows if row["policy"] == policy and fits(row)]
        if not found:
            raise LookupError(f"no row of {policy} at {params}")
        return sorted(found, key=lambda row: row["seed"])

    def policies(self):
        return sorted({row["policy"] for row in self.rows})


class Report:
    """The lines, with whether each holds."""

    def __init__(self):
        self.lines = []

    def add(self, line, bar, measured, holds):
        self.lines.append({"line": line, "bar": bar, "measured": measured, "holds": bool(holds)})

    def table(self):
        yield "| line | bar | measured | |"
        yield "|---|---|---|---|"
        for line in self.lines:
            verdict = "holds" if line["holds"] else "**falls short**"
            yield f"| {line['line']} | {line['bar']} | {line['measured']} | {verdict} |"


def percent(rows, field="block_hit_rate"):
    return [100 * row[field] for row in rows]


def documents_sets(report, data):
    for name, wanted in (("uniform", 40.5), ("skewed", 62.0)):
        rate = percent(data[name].of("round-robin", window=48))[0]
        report.add(f"seed-{name}, round robin, head first, published seed", f"{wanted} ± 1 %", f"{rate:.2f} %", abs(rate - wanted) <= 1)
    for name, wanted in (("uniform", 42.0), ("skewed", 63.3)):
        rate = percent(data[f"{name}-tail"].of("round-robin"))[0]
        report.add(f"seed-{name}, round robin, tail first", f"{wanted} ± 1 %", f"{rate:.2f} %", abs(rate - wanted) <= 1)
    for name in ("uniform", "skewed"):
        for window in (48, 72, 96, 192):
            rates = percent(data[name].of("prefix", window=window))
            reference = percent(data[name].of("reference", window=window))
            bar = 99.4 if window == 48 else 99.0
            report.add(f"seed-{name}, window {window}", f"mean ≥ {bar} %, no seed < 99.0",
                       f"{spread(rates)} % (reference's rule {mean(reference):.1f})",
                       mean(rates) >= bar and min(rates) >= 99.0)
        for window in (48, 72, 96, 192):
            busiest = [row["load_max_over_mean"] for row in data[name].of("prefix", window=window)]
            report.add(f"seed-{name}, window {window}, busiest node by requests", "mean of five seeds ≤ 1.4 × mean",
                       spread(busiest), mean(busiest) <= 1.4)


def best_partition(report, data):
    means, low = [], []
    for documents in (18, 20, 30, 50):
        ours = percent(data["documents"].of("prefix", documents=documents))
        best = percent(data["documents"].of("static-partition", documents=documents))
        shares = [100 * a / b for a, b in zip(ours, best)]
        means.append(mean(shares))
        low.append(min(shares))
        report.add(f"documents {documents}, share of the best partition", "≥ 97.5 %",
                   f"{spread(shares, '{:.1f}')} % (hits {mean(ours):.1f} of {mean(best):.1f} %)", mean(shares) >= 97.5)
    report.add("documents, mean of the four", "≥ 98 %", f"{mean(means):.1f} % (lowest run {min(low):.1f})", mean(means) >= 98)


def two_gpus(report, data):
    for concurrency, bar in ((1, 55), (8, 70), (32, 0)):
        ours = [row["mean_ttft_ms"] for row in data["a40"].of("prefix", concurrency=concurrency)]
        robin = [row["mean_ttft_ms"] for row in data["a40"].of("round-robin", concurrency=concurrency)]
        below = 100 * (1 - mean(ours) / mean(robin))
        worst = min(100 * (1 - a / b) for a, b in zip(ours, robin))
        report.add(f"seed-a40 c={concurrency}, mean TTFT below round robin", f"≥ {bar} %" if bar else "below",
                   f"{below:.1f} % ({mean(ours):.1f} of {mean(robin):.1f} ms; worst seed {worst:.1f} %)", below >= bar and below > 0)


def traces_under_load(report, data):
    for name, bar in (("conversation", 20), ("synthetic", 45)):
        rows = data[name]
        baselines = [policy for policy in rows.policies() if policy != "prefix"]
        for blocks in (5000, 20000):
            for rho in (0.8, 1.0):
                at = {"blocks": blocks, "rho": rho}
                for field, limit, label in (("mean_ttft_ms", 1.02, "mean TTFT"), ("p99_ttft_ms", 1.05, "p99 TTFT")):
                    ours = [row[field] for row in rows.of("prefix", **at)]
                    theirs = {policy: [row[field] for row in rows.of(policy, **at)] for policy in baselines}
                    ratios = [a / min(series[seed] for series in theirs.values()) for seed, a in enumerate(ours)]
                    best = min(baselines, key=lambda policy: mean(theirs[policy]))
                    in_mean = mean(ours) / mean(theirs[best])
                    lowest = in_mean <= 1 if field == "mean_ttft_ms" else in_mean <= limit
                    report.add(f"{name}, {blocks} blocks, ρ {rho}, {label} over the best baseline's", f"≤ {limit} in each run" + (", < 1 in the mean" if field == "mean_ttft_ms" else ""),
                               f"{in_mean:.3f} of {best} in the mean ({mean(ours):,.0f} of {mean(theirs[best]):,.0f} ms), worst run {max(ratios):.3f}",
                               lowest and max(ratios) <= limit)
                if rho == 0.8:
                    ours, least = (mean(row["mean_ttft_ms"] for row in rows.of(policy, **at)) for policy in ("prefix", "least-load"))
                    below = 100 * (1 - ours / least)
                    report.add(f"{name}, {blocks} blocks, ρ 0.8, below least-load", f"≥ {bar} %", f"{below:.0f} %", below >= bar)


def customers(report, data):
    for blocks, residency, bar in ((19208, 73, 93), (14000, 100, 85)):
        rates = percent(data["b2b-off"].of("prefix", blocks=blocks))
        report.add(f"b2b-saas, decode off, {residency} % residency", f"≥ {bar} %", f"{spread(rates)} %", mean(rates) >= bar)
        ours = percent(data["b2b-on"].of("prefix", blocks=blocks))
        shown = percent(data["b2b-shown"].of("prefix", blocks=blocks))
        gap = mean(ours) - mean(shown)
        report.add(f"b2b-saas, decode on, {residency} %, against shown content", "within 1 point (or better)",
                   f"{mean(ours):.2f} against {mean(shown):.2f} %", gap >= -1)
        for decode in ("off", "on"):
            right = mean(percent(data[f"capacity-{decode}-1.0"].of("prefix", blocks=blocks)))
            for factor in ("0.5", "1.63"):
                rates = percent(data[f"capacity-{decode}-{factor}"].of("prefix", blocks=blocks))
                report.add(f"b2b-saas, decode {decode}, {residency} %, capacity believed {factor} ×, after 2,000 requests", "within 1 point of the right one",
                           f"{spread(rates)} against {right:.2f} %", mean(rates) >= right - 1)


def beliefs(report, data):
    for name in ("uniform", "skewed", "documents", "a40", "conversation", "synthetic", "b2b-off", "b2b-on", "agent-loops", "hot-prefix", "mixed"):
        by_point = defaultdict(list)
        for row in data[name].rows:
            if row["policy"] == "prefix":
                point = json.dumps({k: v for k, v in row["params"].items() if k in ("blocks", "rho", "window", "documents", "concurrency")})
                by_point[point].append(row)
        gaps = {point: mean(100 * (r["believed_hit_rate"] - r["block_hit_rate"]) for r in rows) for point, rows in by_point.items()}
        worst = max(gaps.values(), key=abs)
        report.add(f"{name}: believed − true", "within 1 point", f"{worst:+.2f} at the worst point", abs(worst) <= 1)
        errors = {point: mean(100 * r["ttft_error_median"] for r in rows) for point, rows in by_point.items() if rows[0]["ttft_error_median"] is not None}
        if errors:
            runs_worst = max(100 * r["ttft_error_median"] for rows in by_point.values() for r in rows)
            report.add(f"{name}: predicted TTFT, median error", "≤ 15 %",
                       f"{min(errors.values()):.1f} … {max(errors.values()):.1f} % by point (worst run {runs_worst:.1f})", max(errors.values()) <= 15)


def mixed_speeds(report, data):
    for blocks in (5000, 20000):
        ours = [row["p99_ttft_ms"] for row in data["mixed"].of("prefix", blocks=blocks)]
        told = [row["p99_ttft_ms"] for row in data["mixed-told"].of("prefix", blocks=blocks)]
        ratio = mean(ours) / mean(told)
        report.add(f"mixed-gpus, {blocks} blocks, p99 over a run told the speeds", "≤ 1.10", f"{ratio:.3f} ({mean(ours):,.0f} against {mean(told):,.0f} ms)", ratio <= 1.10)


def hot_prefix(report, data):
    rows = data["hot-prefix"]
    ours, others = rows.of("prefix"), [policy for policy in rows.policies() if policy != "prefix"]
    hits = mean(percent(ours))
    for title, field in (("mean", "mean_ttft_ms"), ("p99", "p99_ttft_ms")):
        best = {policy: mean(row[field] for row in rows.of(policy)) for policy in others}
        name = min(best, key=best.get)
        mine = mean(row[field] for row in ours)
        report.add(f"hot-prefix, {title} TTFT", "not above the best baseline",
                   f"{spread([row[field] for row in ours], '{:.1f}')} ms, hits {hits:.1f} % ({name} {best[name]:.1f} ms)", mine <= best[name])


def outage(report, data):
    rows = data["outage"]
    for documents in (10, 12):
        ours = rows.of("prefix", documents=documents)
        hits, times = percent(ours), [row["mean_ttft_ms"] for row in ours]
        others = {
            policy: (
                mean(row["mean_ttft_ms"] for row in rows.of(policy, documents=documents)),
                mean(percent(rows.of(policy, documents=documents))),
            )
            for policy in rows.policies() if policy != "prefix"
        }
        name = min(others, key=others.get)
        seconds, found = others[name][0] / 1e3, others[name][1]
        report.add(f"outage, {documents} documents, hits from 10 s after the return on", "≥ 99 % in each run",
                   f"{spread(hits)} %, mean TTFT {spread(times, '{:.0f}')} ms ({name} {found:.1f} %, {seconds:.0f} s)",
                   min(hits) >= 99.0)


SECTIONS = [documents_sets, best_partition, two_gpus, traces_under_load, customers, beliefs, mixed_speeds, hot_prefix, outage]


def main():
    parser = argparse.ArgumentParser(prog="integration-tests/show routing", description=__doc__)
    parser.add_argument("--warmpath", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--traces", type=pathlib.Path, required=True, help="folder with the two Mooncake traces, gzipped")
    parser.add_argument("--rows", type=pathlib.Path, help="keep the rows of every run in this folder; runs that are there are not repeated")
    parser.add_argument("--json", type=pathlib.Path, help="write the lines there")
    parser.add_argument("--plots", type=pathlib.Path, help="draw the pictures into this folder")
    options = parser.parse_args()
    folder = options.rows or pathlib.Path("target/routing")
    folder.mkdir(parents=True, exist_ok=True)
    data = {}
    for name, flags in runs(options.traces).items():
        file = folder / f"{name}.json"
        if not (options.rows and file.exists()):
            start = time.monotonic()
            simulate(options.warmpath, flags, "--json", str(file))
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        data[name] = Rows(json.loads(file.read_text()))
    if options.plots:
        for name, flags in plots(options.traces).items():
            out = options.plots / f"{name}.svg"
            simulate(options.warmpath, flags, "--json", str(folder / f"plot-{name}.json"), "--svg", str(out))
    report = Report()
    for section in SECTIONS:
        section(report, data)
    for line in report.table():
        print(line)
    holds = all(line["holds"] for line in report.lines)
    if options.json:
        options.json.write_text(json.dumps({"line": "routing", "holds": holds, "figures": report.lines}, indent=1, ensure_ascii=False) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
