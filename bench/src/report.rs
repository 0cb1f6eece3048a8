//! The result as Markdown.

use std::fmt::Write as _;
use std::time::Duration;

/// One table.
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn write(&self, out: &mut String) {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<usize> = (0..self.head.len())
            .map(|c| all().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
            .collect();
        for (number, row) in all().enumerate() {
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(out, "| {cell:width$} ");
            }
            out.push_str("|\n");
            if number == 0 {
                for width in &widths {
                    let _ = write!(out, "|{}", "-".repeat(width + 2));
                }
                out.push_str("|\n");
            }
        }
    }
}

/// A goal and what was measured. Missing one is no failure.
pub struct Goal {
    /// What is measured.
    pub what: String,
    /// What was measured.
    pub measured: String,
    /// What is wanted.
    pub wanted: String,
    /// Whether the one is as good as the other.
    pub met: bool,
}

/// A part of the benchmark.
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// Its numbers.
    pub table: Table,
    /// What should be known to read them.
    pub notes: Vec<String>,
    /// Its goals.
    pub goals: Vec<Goal>,
}

/// The whole result: the goals first, then the numbers.
pub fn markdown(machine: &str, sections: &[Section]) -> String {
    let mut out = format!("# Benchmark\n\n{machine}\n\n");
    let mut goals = Table::new(&["goal", "measured", "wanted", "verdict"]);
    for goal in sections.iter().flat_map(|s| &s.goals) {
        let verdict = if goal.met { "met" } else { "missed" };
        goals.row([goal.what.clone(), goal.measured.clone(), goal.wanted.clone(), verdict.to_owned()]);
    }
    goals.write(&mut out);
    for section in sections {
        let _ = write!(out, "\n## {}\n\n", section.title);
        section.table.write(&mut out);
        for note in &section.notes {
            let _ = write!(out, "\n{note}\n");
        }
    }
    out
}

/// A time in milliseconds with three significant digits or so.
pub fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    match ms {
        _ if ms >= 100.0 => format!("{ms:.0}"),
        _ if ms >= 10.0 => format!("{ms:.1}"),
        _ if ms >= 1.0 => format!("{ms:.2}"),
        _ => format!("{ms:.3}"),
    }
}

/// Bytes in MB of a million.
pub fn mb(bytes: u64) -> String {
    // Exact enough: no process here comes near 2^52 bytes.
    #[allow(clippy::cast_precision_loss)]
    let mb = bytes as f64 / 1e6;
    if mb >= 100.0 { format!("{mb:.0}") } else { format!("{mb:.1}") }
}

/// Whole numbers with thin groups.
pub fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(ms(Duration::from_micros(48)), "0.048");
        assert_eq!(ms(Duration::from_micros(12_345)), "12.3");
        assert_eq!(mb(4_194_304), "4.2");
        assert_eq!((whole(999.6), whole(1234.0), whole(12.0)), ("1 000".into(), "1 234".into(), "12".into()));
    }

    #[test]
    fn goals_come_first_and_columns_line_up() {
        let mut table = Table::new(&["path", "n"]);
        table.row(["é".to_owned(), "12345".to_owned()]);
        let goal = Goal { what: "w".into(), measured: "2".into(), wanted: "≤ 1".into(), met: false };
        let section = Section { title: "T", table, notes: vec!["note".into()], goals: vec![goal] };
        let text = markdown("m", &[section]);
        assert!(text.contains("| w    | 2        | ≤ 1    | missed  |"), "{text}");
        assert!(text.contains("## T\n\n| path | n     |\n|------|-------|\n| é    | 12345 |\n\nnote\n"), "{text}");
    }
}
