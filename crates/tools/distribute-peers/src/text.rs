//! The report as text of at most 80 columns.

use std::fmt::{self, Write as _};

use crate::report::{EdgeReport, Finding, RankReport, Report};
use crate::words::{rate, three_digits};

/// The width of a line, unless an address is longer.
const COLUMNS: usize = 80;
/// Up to this many ranks there is a matrix, above that a list.
const MATRIX_MAX: usize = 8;
/// Edges in the list.
const LISTED_MAX: usize = 12;
/// Columns of a cell of a matrix.
const CELL: usize = 8;

impl fmt::Display for Report {
    /// Tables of ranks and of edges, problems, notes, and the result, without a line end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        wrapped(f, &self.head(), 0)?;
        writeln!(f)?;
        self.table(f)?;
        if self.ranks.len() <= MATRIX_MAX {
            let title = "rate in MB/s, from the row (which dials) to the column";
            self.matrix(f, title, |edge| {
                edge.bytes_per_second.map(|rate| three_digits(rate / 1e6))
            })?;
            let title = "round trip in ms, the median";
            self.matrix(f, title, |edge| {
                edge.round_trip_seconds
                    .map(|seconds| format!("{:.2}", seconds * 1e3))
            })?;
        } else {
            self.list(f)?;
        }
        writeln!(f)?;
        for (name, findings) in [("problem", &self.problems), ("note", &self.notes)] {
            for Finding { text, .. } in findings {
                wrapped(f, &format!("{name}: {text}"), 4)?;
            }
        }
        f.write_str(&self.result())
    }
}

impl Report {
    fn head(&self) -> String {
        let present = self.ranks.iter().filter(|rank| rank.present).count();
        let hosts = self.ranks.iter().filter_map(|rank| rank.host).max();
        let hosts = hosts.map_or(0, |last| last + 1);
        let method = &self.method;
        let s = if hosts == 1 { "" } else { "s" };
        let rounds = if method.rounds == 1 {
            "round"
        } else {
            "rounds"
        };
        format!(
            "{present} of {} ranks met, on {hosts} host{s}, after {:.1} s; measured {} of {} pairs in {} \
             {rounds}, each direction for {:.2} s; {:.1} s in all",
            self.ranks.len(),
            self.met_seconds,
            method.measured,
            method.pairs,
            method.rounds,
            method.slot_seconds,
            self.seconds
        )
    }

    fn result(&self) -> String {
        match self.problems.len() {
            0 if self.ranks.len() < 2 => "there is no other rank".to_string(),
            0 => "all ranks reach each other".to_string(),
            1 => "1 problem: a job of these ranks does not work".to_string(),
            count => format!("{count} problems: a job of these ranks does not work"),
        }
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = [
            "rank",
            "host",
            "address",
            "interface",
            "cores",
            "files",
            "clock (ms)",
        ];
        let mut rows = vec![head.map(str::to_string)];
        rows.extend(self.ranks.iter().map(row));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..head.len())
            .map(|column| width(column).unwrap_or(0))
            .collect();
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, "{cell:<width$}  ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn matrix(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        cell: impl Fn(&EdgeReport) -> Option<String>,
    ) -> fmt::Result {
        if self.ranks.len() < 2 {
            return Ok(());
        }
        writeln!(f, "\n{title}")?;
        write!(f, "{:4}", "")?;
        for rank in &self.ranks {
            write!(f, "{:>CELL$}", rank.rank)?;
        }
        for from in &self.ranks {
            write!(f, "\n{:<4}", from.rank)?;
            for to in &self.ranks {
                let edge = self.edge(from.rank, to.rank);
                let text = match edge {
                    _ if from.rank == to.rank => "-".to_string(),
                    Some(edge) if !edge.works => "broken".to_string(),
                    Some(edge) => cell(edge).unwrap_or_else(|| "?".to_string()),
                    None => "?".to_string(),
                };
                write!(f, "{text:>CELL$}")?;
            }
        }
        writeln!(f)
    }

    /// The slowest edges; those that are broken are among the problems.
    fn list(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = self.edges.iter().filter_map(|edge| {
            let rate = edge.bytes_per_second?;
            Some((edge, rate))
        });
        let mut all: Vec<_> = measured.collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        writeln!(
            f,
            "\nslowest directions (--output json lists all {})",
            self.edges.len()
        )?;
        for (edge, bytes_per_second) in all.iter().take(LISTED_MAX) {
            let trip = edge.round_trip_seconds.unwrap_or_default() * 1e3;
            let place = if edge.is_local { "  on one host" } else { "" };
            let line = format!(
                "{:>6} -> {:<6} {:>10}  round trip {trip:.2} ms{place}",
                edge.from,
                edge.to,
                rate(*bytes_per_second)
            );
            writeln!(f, "{line}")?;
        }
        let broken = self.edges.iter().filter(|edge| !edge.works).count();
        if let Some((_, middle)) = all.get(all.len() / 2) {
            let middle = rate(*middle);
            writeln!(f, "median {middle}; {broken} broken")?;
        }
        Ok(())
    }
}

fn row(rank: &RankReport) -> [String; 7] {
    let none = || "-".to_string();
    let facts = rank.facts.as_ref();
    let host = rank.host.zip(facts);
    let host = host.map(|(number, facts)| format!("{number} {}", cut(&facts.host, 14)));
    let clock = rank.clock.map(|clock| {
        let (offset, error) = (clock.seconds * 1e3, clock.uncertainty_seconds * 1e3);
        format!("{offset:+.2} +-{error:.2}")
    });
    let files = facts.map(|facts| {
        facts
            .descriptors
            .map_or_else(|| "any".to_string(), |limit| limit.to_string())
    });
    let state = match (&rank.lost, rank.present) {
        (Some(_), _) => Some("lost".to_string()),
        (None, false) => Some("missing".to_string()),
        (None, true) => host,
    };
    [
        rank.rank.to_string(),
        state.unwrap_or_else(none),
        rank.address.clone().unwrap_or_else(none),
        rank.interface.clone().unwrap_or_else(none),
        facts.map_or_else(none, |facts| facts.cores.to_string()),
        files.unwrap_or_else(none),
        clock.unwrap_or_else(none),
    ]
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// Writes lines that break between words; those after the first are indented.
fn wrapped(f: &mut fmt::Formatter<'_>, text: &str, indent: usize) -> fmt::Result {
    let (mut line, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COLUMNS {
            writeln!(f, "{line}")?;
            line = " ".repeat(indent);
            width = indent;
        } else if width > 0 {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += length;
    }
    writeln!(f, "{line}")
}
