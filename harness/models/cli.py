"""`python -m harness model list|make|info`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from harness.models.resolve import ModelFile, ModelProgress


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness model",
        description="Models by name (conf/model/) or by file: list, make, inspect.",
    )
    actions = p.add_subparsers(dest="action", required=True, metavar="list|make|info")
    listing = actions.add_parser("list", help="the models that have a name, and which are here")
    making = actions.add_parser("make", help="make or fetch a model")
    info = actions.add_parser("info", help="what a GGUF file or a named model is")
    making.add_argument("name", metavar="NAME", help="a model of `list`")
    making.add_argument("-o", "--output", type=Path, metavar="FILE", help="not into the cache")
    info.add_argument("name", metavar="PATH|NAME", help="a GGUF file, or a model of `list`")
    for action in (making, info):
        action.add_argument(
            "overrides", nargs="*", metavar="key=value", help="as in factor=16 or geometry=tiny"
        )
    for action in (listing, making, info):
        action.add_argument("--cache-dir", metavar="DIR", help="default: ~/.cache/moe-harness")
        action.add_argument("--json", action="store_true", help="print JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    line = ProgressLine()
    try:
        result = {"list": _list, "make": _make, "info": _info}[args.action](args, line)
        line.close()
    except HarnessError as e:
        line.close()
        print(f"harness: error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        line.close()
        print("harness: interrupted; nothing partial is left", file=sys.stderr)
        return 130
    print(result)
    return 0


class ProgressLine:
    """Shows progress on stderr: one line that overwrites itself; without a terminal, only notes."""

    INTERVAL_S = 0.1

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = float("-inf")
        self._open = False

    def __call__(self, step: ModelProgress) -> None:
        """Show one step."""
        if not self._terminal:
            if step.note:
                print(step.message, file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        if not step.note and now - self._shown < self.INTERVAL_S:
            return
        self._shown = now
        share = f" {100 * step.done / step.total:.0f} %" if step.done and step.total else ""
        sys.stderr.write(f"\r\x1b[K{step.message}{share}")
        self._open = True
        if step.note:
            self.close()
        sys.stderr.flush()

    def close(self) -> None:
        """End the line that is being overwritten."""
        if self._open:
            sys.stderr.write("\n")
            self._open = False


def _make(args: argparse.Namespace, line: ProgressLine) -> str:
    from harness.models import registry
    from harness.models.resolve import resolve_model, write_model

    config = registry.configuration(args.name, args.overrides)
    if args.output is not None:
        model = write_model(config, args.output, cache_dir=args.cache_dir, progress=line)
    else:
        model = resolve_model(config, cache_dir=args.cache_dir, progress=line)
    if args.json:
        return json.dumps(model.to_json())
    return f"{model.path}\n{model.origin}: {model.name}, {_size(model.info.file_bytes)}"


def _info(args: argparse.Namespace, line: ProgressLine) -> str:
    from harness.models import registry
    from harness.models.resolve import resolve_model

    named = args.name in registry.names() and not Path(args.name).is_file()
    if named:
        config = registry.configuration(args.name, args.overrides)
    elif args.overrides:
        raise UsageError(f"{args.overrides[0]}: a file has no keys to set")
    elif Path(args.name).expanduser().exists() or "/" in args.name or args.name.endswith(".gguf"):
        config = {"kind": "path", "path": args.name}
    else:
        config = registry.configuration(args.name)  # refuses, with the nearest names
    model = resolve_model(config, cache_dir=args.cache_dir, make=False, progress=line)
    return json.dumps(model.to_json()) if args.json else _describe(model)


def _describe(model: ModelFile) -> str:
    i = model.info
    types = ", ".join(f"{kind} ({n})" for kind, n in sorted(i.types.items()))
    rows = [
        ("name", i.name or model.name),
        ("file", f"{model.path}" + (f" and {n} more" if (n := len(i.shards) - 1) else "")),
        ("sha256", model.sha256),
        ("architecture", i.arch),
        ("layers", f"{i.n_layer}, {i.n_moe_layer} of them with routed experts"),
        ("experts", f"{i.n_expert} in a layer, {i.n_expert_used} used by a token"),
        ("width", f"{i.n_embd}, expert {i.n_ff_expert or 'unknown'}"),
        ("expert weights", f"{types} tensors"),
        ("expert bytes", f"{i.expert_bytes} ({_size(i.expert_bytes)})"),
        ("largest expert", f"{i.expert_bytes_max} ({_size(i.expert_bytes_max)})"),
        ("dense bytes", f"{i.dense_bytes} ({_size(i.dense_bytes)})"),
        ("file bytes", f"{i.file_bytes} ({_size(i.file_bytes)})"),
        ("vocabulary", f"{i.n_vocab or 'unknown'} ({i.tokenizer or 'no tokenizer'})"),
        ("trained context", f"{i.n_ctx_train or 'unknown'}"),
    ]
    return "\n".join(f"{label:<16}{text}" for label, text in rows)


def _list(args: argparse.Namespace, line: ProgressLine) -> str:
    from harness.models import registry

    rows = [_row(name, args.cache_dir) for name in registry.names()] + _architecture_rows()
    if args.json:
        return json.dumps(rows)
    widths = {k: max(len(str(r[k])) for r in rows) for k in ("name", "kind", "state")}
    return "\n".join(
        "  ".join([*(str(r[k]).ljust(w) for k, w in widths.items()), r["about"]]) for r in rows
    )


def _row(name: str, cache_dir: str | None) -> dict[str, Any]:
    from harness.cachedir import cache_root
    from harness.models import hub, registry
    from harness.models.config import HubModel, PathModel, ReferenceModel, parse_model
    from harness.models.resolve import DATA, REFERENCE

    config = parse_model(registry.configuration(name))
    path: Path | None = None
    if isinstance(config, ReferenceModel):
        path = DATA / REFERENCE
        state = "here" if path.is_file() else "missing"
    elif isinstance(config, HubModel):
        path = hub.present(config, cache_root(cache_dir))
        state = "here" if path else "to fetch"
    else:
        state = "yours" if isinstance(config, PathModel) else "made on demand"
    return {
        "name": name,
        "kind": config.kind,
        "state": state,
        "path": str(path) if path is not None and state == "here" else None,
        "about": registry.described(name),
    }


def _architecture_rows() -> list[dict[str, Any]]:
    """Synthetic models by architecture, as `make` takes them."""
    from harness.models.architectures import ARCHITECTURES

    return [
        {
            "name": f"synthetic arch={name}",
            "kind": "synthetic",
            "state": "made on demand",
            "path": None,
            "about": f"Random weights: {arch.about}.",
        }
        for name, arch in ARCHITECTURES.items()
    ]


def _size(n: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} B"
