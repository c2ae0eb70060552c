//! Tables: columns as wide as their widest entry, two blanks between them.

use std::fmt;

use super::printable;

/// A table. Without rows it is one line that says so.
pub(super) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&'static str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { head: head.to_vec(), rows: rows.into_iter().collect() }
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| printable(cell).chars().count()).max().unwrap_or(0);
        widest.max(self.head[column].len())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return writeln!(f, "(none)");
        }
        let widths: Vec<usize> = (0..self.head.len()).map(|column| self.width(column)).collect();
        let mut line = |cells: Vec<String>| {
            let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            let line = padded.collect::<Vec<_>>().join("  ");
            writeln!(f, "{}", line.trim_end())
        };
        line(self.head.iter().map(|&name| name.to_owned()).collect())?;
        self.rows.iter().try_for_each(|row| line(row.iter().map(|c| printable(c)).collect()))
    }
}
