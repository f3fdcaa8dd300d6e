"""Show where the time of a run goes, node by node."""

from ortune.cli.terminal.command import is_verbose, make_command
from ortune.cli.terminal.output import print_parts, print_result, print_text
from ortune.core import wording
from ortune.reporting.python.requests import ProfilePage


@make_command(ProfilePage)
def command(request: ProfilePage) -> None:
    """Show the time by operator, node and region, and what can be done."""
    from ortune.analysis.profiling import files
    from ortune.reporting.python.profile import run

    profile = run(request)

    def show() -> None:
        from ortune.reporting.profile import TOP, build_profile_parts

        sections = build_profile_parts(profile, None if is_verbose() else TOP)
        print_parts([part for part in sections if part.name != "notes"])
        if not is_verbose() and len(profile.kernels) > TOP:
            print_text(
                f"{wording.format_count(len(profile.kernels), 'kernel')} ran, the longest are "
                "shown; -v lists them all"
            )

    print_result(files.encode_profile(profile), show)
