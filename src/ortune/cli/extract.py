"""Cut a part of a model out, with its real inputs."""

from ortune.analysis.verification.requests import Extract
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import format_size, print_result, print_specs, print_text
from ortune.core import wording

_WAYS = 6


@make_command(Extract)
def command(request: Extract) -> None:
    """Show the piece's inputs and outputs."""
    from ortune.analysis.verification.extract import run

    extracted = run(request)
    result = {"model": request.model, "output": extracted.path, **vars(extracted)}
    del result["path"]

    def show() -> None:
        print_specs("input", extracted.inputs)
        print_specs("output", extracted.outputs)
        if extracted.added:
            print_text(
                f"also needs the inputs {', '.join(extracted.added)}: paths around the named "
                "tensors start there"
            )
            words = " ".join(f"--from {name}" for name in extracted.ways[:_WAYS])
            if extracted.ways:
                print_text(
                    f"to leave them out: {words}{' ...' if len(extracted.ways) > _WAYS else ''}"
                )
        weights = format_size(extracted.weight_bytes)
        print_text(
            f"{extracted.path}: {extracted.nodes} of "
            f"{wording.format_count(extracted.of_nodes, 'node')}, {weights} of weights"
        )
        if extracted.samples is not None:
            count = f"{extracted.count} sample{'' if extracted.count == 1 else 's'}"
            print_text(f"{extracted.samples}: {count}; its outputs are those of the whole model")

    print_result(result, show)
