"""`bertworks doctor` and `bertworks demo`: what this machine has, and what the tool does on it."""

from dataclasses import asdict

from bertworks.cli.console import emit
from bertworks.cli.options import Json


def doctor(*, as_json: Json = False) -> int:
    """Show what this machine has, what was chosen for it, and whether training works here. Takes a few seconds."""
    from bertworks.use.doctor import doctor as examine

    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            print(f"{'  ' if check.good else '! '}{check.name:<14}{check.text}", flush=True)
            if check.fix:
                print(f"{'':16}fix: {check.fix}")
    if as_json:
        emit([asdict(check) for check in checks])
    return 0 if all(check.good for check in checks) else 1
