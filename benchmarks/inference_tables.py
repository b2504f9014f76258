"""What benchmarks/inference.py found, as tables of docs/concepts/performance.md."""

from typing import Any

COLUMNS = ("default settings", "our settings")


def tables(name: str, results: dict[str, Any]) -> list[str]:
    """What was found of a work, and where it comes from."""
    work = results["work"]
    match name:
        case "alone":
            lines = [
                *start_table(work["start"]),
                "",
                *growth_table(work),
                "",
                *stages_table(work["profile"]),
            ]
        case "query":
            lines = query_table(work)
        case _:
            lines = speed_table(work)
    shown = ", ".join(f"{package} {number}" for package, number in results["versions"].items())
    return [
        *lines,
        "",
        f"`{results['command']}` at {results['commit']}, {results['time'][:10]}; {results['cpu']}, "
        f"{results['threads']} threads, {' '.join(results['cpu_flags'])}, matrix products at "
        f"{results['ceiling'] / 1e9:,.0f} GFLOP/s; {shown}. {results['rounds']} rounds, "
        f"{results['seconds'] / 60:,.0f} minutes.",
        *([f"Not installed: {', '.join(results['absent'])}."] if results["absent"] else []),
    ]


def speed_table(work: dict[str, Any]) -> list[str]:
    kind = "largest difference" if work["title"].startswith("Labels") else "worst cosine"
    title = (
        f"{work['title']}: {work['texts']:,} texts, {work['tokens']:,} tokens, "
        f"{work['longest']} at most"
    )
    lines = [
        f"| **{title}** | tokens/s | bertworks is faster | our settings | bertworks is faster | "
        "of matmul | memory MB "
        f"| {kind} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in work["medians"].items():
        cells = []
        for column in COLUMNS:
            one = found.get(column)
            cells += [f"{one['tokens_per_second']:,.0f}", faster(name, one)] if one else ["", ""]
        first, right = found["default settings"], found["agreement"]
        agreement = (
            ""
            if right is None
            else f"{right:.1e}"
            if kind.startswith("largest")
            else f"{right:.6f}"
        )
        lines.append(
            f"| {name} | {' | '.join(cells)} | {first['of_matmul']:.0%} | "
            f"{first['memory_mb']:,.0f} | {agreement} |"
        )
    return lines


def query_table(work: dict[str, Any]) -> list[str]:
    lines = [
        f"| **{work['title']}**, {work['longest']} tokens | p50 ms | p95 ms | bertworks is faster "
        "| our settings, p50 "
        "| bertworks is faster | first vector after s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in work["medians"].items():
        first, second = found["default settings"], found.get("our settings")
        ours = [f"{second['p50']:.2f}", faster(name, second)] if second else ["", ""]
        lines.append(
            f"| {name} | {first['p50']:.2f} | {first['p95']:.2f} | {faster(name, first)} | "
            f"{' | '.join(ours)} "
            f"| {first['first_vector']:.1f} |"
        )
    return lines


def faster(name: str, found: dict[str, Any]) -> str:
    return (
        f"{found['bertworks_is_faster']:.2f} x"
        if name != "bertworks" and "bertworks_is_faster" in found
        else ""
    )


def start_table(found: dict[str, float]) -> list[str]:
    return [
        "| **Start of a command** | s |",
        "|---|---|",
        *(f"| `{name}` | {s:.2f} |" for name, s in found.items()),
    ]


def growth_table(alone: dict[str, Any]) -> list[str]:
    lines = [
        "| **`bertworks embed`, as it grows** | tokens/s | memory MB | GFLOP/s |",
        "|---|---|---|---|",
    ]
    for what, one in alone["growth"].items():
        lines.append(f"| {what} | {one['tokens_per_second']:,.0f} | {one['memory_mb']:,.0f} | |")
    for length, one in alone["lengths"].items():
        lines.append(
            f"| texts of {length} tokens | {one['tokens_per_second']:,.0f} | | "
            f"{one['flops_per_second'] / 1e9:,.0f} |"
        )
    return lines


def stages_table(found: dict[str, Any]) -> list[str]:
    total = sum(found["seconds"].values())
    lines = [
        f"| **Where bertworks' time goes**, {found['tokens']:,} tokens, {found['precision']} | s "
        "| share | its matrix "
        "products at the ceiling, s |",
        "|---|---|---|---|",
    ]
    for stage, seconds in sorted(found["seconds"].items(), key=lambda pair: -pair[1]):
        floor = f"{found['floors'][stage]:.2f}" if stage in found["floors"] else ""
        lines.append(f"| {stage} | {seconds:.2f} | {seconds / total:.0%} | {floor} |")
    return [*lines, f"| all | {total:.2f} | | {sum(found['floors'].values()):.2f} |"]
