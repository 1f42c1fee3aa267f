"""Tables, written for people and for programs."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "{": r"\{", "}": r"\}", "$": r"\$"}


@dataclass(frozen=True)
class Table:
    """Named columns; numbers stay numbers until they are shown."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_csv(self) -> str:
        """All digits; what is not known is empty."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if _unknown(cell) else cell for cell in row] for row in self.rows])
        return buffer.getvalue()

    def to_markdown(self) -> str:
        """A table of GitHub's kind, below its title."""
        rule = ["---:" if self._is_number(i) else "---" for i in range(len(self.columns))]
        lines = [self.columns, rule, *([show(cell).replace("|", r"\|") for cell in row] for row in self.rows)]
        return f"### {self.title}\n\n{self.note}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_latex(self) -> str:
        """A booktabs table."""
        kinds = "".join("r" if self._is_number(i) else "l" for i in range(len(self.columns)))
        rows = [" & ".join(_tex(show(cell)) for cell in row) + r" \\" for row in self.rows]
        return "\n".join(
            [
                r"\begin{table}\centering",
                rf"\caption{{{_tex(self.title)}. {_tex(self.note)}}}",
                rf"\begin{{tabular}}{{{kinds}}}\toprule",
                " & ".join(map(_tex, self.columns)) + r" \\ \midrule",
                *rows,
                r"\bottomrule\end{tabular}\end{table}",
                "",
            ]
        )

    def to_html(self, most: int = 200) -> str:
        """A table element; a long one is cut, and says so."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_td, row))}</tr>" for row in self.rows[:most])
        more = len(self.rows) > most
        cut = f"<p>The first {most} of {len(self.rows)} rows; all are in the CSV file.</p>" if more else ""
        return (
            f'<table id="table-{self.name}"><caption>{html.escape(self.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f'<p class="note">{html.escape(self.note)}</p>{cut}'
        )

    def _is_number(self, column: int) -> bool:
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)


def write(tables: Sequence[Table], folder: Path) -> None:
    """Every table as CSV, Markdown and LaTeX, and all of them as sheets of one workbook."""
    folder.mkdir()
    for table in tables:
        for suffix, text in (("csv", table.to_csv()), ("md", table.to_markdown()), ("tex", table.to_latex())):
            (folder / f"{table.name}.{suffix}").write_text(text)
    write_workbook(tables, folder / "tables.xlsx")


def write_workbook(tables: Sequence[Table], file: Path) -> None:
    """One sheet for each table, with a filter and a fixed heading."""
    import xlsxwriter

    with xlsxwriter.Workbook(str(file), {"nan_inf_to_errors": False, "strings_to_formulas": False}) as book:
        bold = book.add_format({"bold": True})
        for table in tables:
            sheet = book.add_worksheet(table.name[:31])
            sheet.write_row(0, 0, table.columns, bold)
            for i, row in enumerate(table.rows, start=1):
                for j, cell in enumerate(row):
                    if not _unknown(cell):
                        sheet.write(i, j, show(cell) if isinstance(cell, float) and math.isinf(cell) else cell)
            sheet.freeze_panes(1, 0)
            sheet.autofilter(0, 0, max(1, len(table.rows)), max(0, len(table.columns) - 1))
            sheet.autofit()


def show(cell: Any) -> str:
    """A cell as it is read: four digits, thousands apart, "-" for what is not known."""
    if _unknown(cell):
        return "-"
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if math.isinf(cell):
        return "never"
    return f"{cell:,.0f}" if abs(cell) >= 10_000 else f"{cell:.4g}"


def _unknown(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _td(cell: Any) -> str:
    kind = ' class="number"' if isinstance(cell, (int, float)) else ""
    return f"<td{kind}>{html.escape(show(cell))}</td>"


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)
