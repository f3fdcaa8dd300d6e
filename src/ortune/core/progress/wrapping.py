"""Text in lines of a width, broken between words and nowhere else."""

from rich.cells import cell_len, set_cell_size


def wrap_text(text: str, width: int, hang: str = "") -> list[str]:
    """Break a text at its spaces; a word that is too long for a line has one of its own, whole.

    A name can then be copied from a terminal as it is: where it is wider than that, the terminal
    itself goes on in the next line. Line breaks and leading spaces stay.

    Args:
        width: Columns of the terminal.
        hang: Put before every line that goes on with another, behind its leading spaces.
    """
    lines = []
    for line in text.split("\n"):
        if cell_len(line) <= width:
            lines.append(line)
            continue
        start = line[: len(line) - len(line.lstrip(" "))]
        first, *words = line.split() or [""]
        lines.append(start + first)
        for word in words:
            if cell_len(f"{lines[-1]} {word}") > width:
                lines.append(start + hang + word)
            else:
                lines[-1] += f" {word}"
    return lines


def longest_word(text: str) -> int:
    """Return the columns that no line of a text can do without."""
    return max(map(cell_len, text.split()), default=0)


def crop_text(text: str, width: int) -> str:
    """Return a line that is at most so wide; what does not fit is cut off behind an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "\N{HORIZONTAL ELLIPSIS}"
