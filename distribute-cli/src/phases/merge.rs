//! Merges the parts of several workers into one trace with one clock.
//!
//! Parts are read line by line, twice: first to find the last worker in each exchange, which needs
//! 16 bytes per exchange, then to write.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::output_file::OutputFile;

/// The name of the first event of a part, which contains its worker and the offset of its clock.
pub(super) const HEAD: &str = "distribute_part";
/// The maximum length of an event.
const LINE_MAX: u64 = 1 << 16;

/// A part, and the content of its first event.
struct Part {
    path: PathBuf,
    rank: usize,
    /// The offset that is subtracted from its times, in microseconds.
    shift: f64,
    error: f64,
}

/// The last worker in an exchange, and its time on the chief's clock.
#[derive(Debug, Clone, Copy)]
struct Last {
    rank: u32,
    at: f64,
    error: f64,
}

/// Writes the merged trace and returns its ranks. Parts that are missing or belong to another run
/// are skipped.
pub(super) fn merge(parts: &[PathBuf], run: &str, path: &Path) -> io::Result<Vec<usize>> {
    let mut parts: Vec<(Part, f64)> = parts
        .iter()
        .filter_map(|path| head(path, run).ok().flatten())
        .collect();
    let start = parts
        .iter()
        .map(|(_, start)| *start)
        .fold(f64::INFINITY, f64::min);
    for (part, _) in &mut parts {
        part.shift += start;
    }
    let parts: Vec<Part> = parts.into_iter().map(|(part, _)| part).collect();
    let mut last: HashMap<u64, Last> = HashMap::new();
    for part in &parts {
        each(part, |event| {
            if let Some((sequence, at)) = exchange(&event) {
                let own = Last {
                    rank: part.rank as u32,
                    at,
                    error: part.error,
                };
                let known = last.entry(sequence).or_insert(own);
                if known.at < own.at {
                    *known = own;
                }
            }
            Ok(())
        })?;
    }
    let mut output = OutputFile::create(path)?;
    let mut buffer = io::BufWriter::new(&mut output);
    let mut between = "[\n";
    for part in &parts {
        each(part, |mut event| {
            if let Some((sequence, at)) = exchange(&event)
                && let Some(last) = last.get(&sequence)
            {
                waited(&mut event, part, *last, at);
            }
            let written = write!(buffer, "{between}{event}");
            between = ",\n";
            written
        })?;
    }
    if between == "[\n" {
        write!(buffer, "{between}")?;
    }
    buffer.write_all(b"\n]\n")?;
    buffer.flush()?;
    drop(buffer);
    output.finish()?;
    Ok(parts.iter().map(|part| part.rank).collect())
}

/// The number of an exchange between workers, and the time at which this worker entered it.
fn exchange(event: &Value) -> Option<(u64, f64)> {
    let arguments = &event["args"];
    let is_between_workers = event["cat"] == "exchange" && arguments["transport"] != "threads";
    let sequence = arguments["sequence"].as_u64()?;
    let point_to_point = arguments["kind"] == "send" || arguments["kind"] == "recv";
    (is_between_workers && !point_to_point)
        .then(|| Some((sequence, event["ts"].as_f64()?)))
        .flatten()
}

/// Adds for which worker and how long this one has waited, if this is certain.
fn waited(event: &mut Value, part: &Part, last: Last, at: f64) {
    let waited = last.at - at;
    if last.rank as usize == part.rank || waited <= part.error + last.error {
        return;
    }
    if let Some(arguments) = event["args"].as_object_mut() {
        arguments.insert("waited_for".to_string(), json!(last.rank));
        arguments.insert("waited_us".to_string(), json!(rounded(waited)));
    }
}

/// A whole number of nanoseconds, in microseconds.
fn rounded(microseconds: f64) -> f64 {
    (microseconds * 1000.0).round() / 1000.0
}

/// The description of a part, and its begin on the chief's clock; `None` if it belongs to another
/// run.
fn head(path: &Path, run: &str) -> io::Result<Option<(Part, f64)>> {
    let mut lines = lines(path)?;
    let Some(head) = lines.next().transpose()? else {
        return Ok(None);
    };
    let said = &head["args"];
    let number = |name: &str| said[name].as_f64();
    let rank = said["rank"].as_u64();
    let found = head["name"] == HEAD && said["run"] == run;
    let part = rank.filter(|_| found).and_then(|rank| {
        let shift = number("offset_us")?;
        let part = Part {
            path: path.to_path_buf(),
            rank: usize::try_from(rank).ok()?,
            shift,
            error: number("error_us")?,
        };
        Some((part, number("start_us")? - shift))
    });
    Ok(part)
}

/// Calls a closure for every event of a part, with times on the chief's clock.
fn each(part: &Part, mut call: impl FnMut(Value) -> io::Result<()>) -> io::Result<()> {
    for event in lines(&part.path)? {
        let mut event = event?;
        if let Some(at) = event["ts"].as_f64() {
            event["ts"] = json!(rounded(at - part.shift));
        }
        call(event)?;
    }
    Ok(())
}

/// The events of a part. It may still be being written: an incomplete line is ignored.
fn lines(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Value>>> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    Ok(std::iter::from_fn(move || {
        loop {
            line.clear();
            match (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
            let text = line.trim_ascii_end();
            let text = text.strip_suffix(b",").unwrap_or(text);
            if let Ok(event) = serde_json::from_slice::<Map<String, Value>>(text) {
                return Some(Ok(Value::Object(event)));
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::writer::{TraceFile, metadata};
    use super::*;

    /// A part with exchanges that begin at these microseconds of its clock.
    fn part(path: &Path, rank: usize, offset: f64, error: f64, exchanges: &[(u64, f64)]) {
        let mut file = TraceFile::create(path).unwrap();
        let head = json!({
            "run": "run", "rank": rank, "start_us": 100.0 + offset,
            "offset_us": offset, "error_us": error,
        });
        file.add(&metadata(rank, 0, HEAD, &head)).unwrap();
        for (sequence, at) in exchanges {
            let event = json!({
                "name": "exchange", "cat": "exchange", "ph": "X", "pid": rank, "tid": 0,
                "ts": at, "dur": 50.0,
                "args": {"kind": "all_reduce", "sequence": sequence, "transport": "shm"},
            });
            file.add(&event.to_string()).unwrap();
        }
        file.flush().unwrap();
    }

    #[test]
    fn parts_are_on_one_clock_and_say_who_came_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let of_chief = [(7, 110.0), (8, 220.0), (9, 330.0)];
        let of_other = [(7, 1e6 + 140.0), (8, 1e6 + 219.0), (9, 1e6 + 331.0)];
        part(&path("0"), 0, 0.0, 0.0, &of_chief);
        part(&path("1"), 1, 1e6, 2.0, &of_other);
        // A part of another run, and a missing one.
        std::fs::write(path("2"), "[\n{\"name\":\"x\",\"args\":{}}\n]\n").unwrap();
        let parts = ["0", "1", "2", "3"].map(path);
        let whole = path("whole.json");
        assert_eq!(merge(&parts, "run", &whole).unwrap(), [0, 1]);
        let text = std::fs::read_to_string(whole).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let exchanges = events.iter().filter(|event| event["ph"] == "X");
        let found: Vec<_> = exchanges
            .map(|event| {
                let arguments = &event["args"];
                (
                    event["pid"].as_u64().unwrap(),
                    event["ts"].as_f64().unwrap(),
                    arguments["waited_for"].as_u64(),
                    arguments["waited_us"].as_f64(),
                )
            })
            .collect();
        let expected = [
            (0, 10.0, Some(1), Some(30.0)),
            // The error of the clocks is larger: either may have come last.
            (0, 120.0, None, None),
            (0, 230.0, None, None),
            (1, 40.0, None, None),
            (1, 119.0, None, None),
            (1, 231.0, None, None),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_line_that_is_not_whole_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0");
        part(&path, 0, 0.0, 0.0, &[(1, 101.0)]);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            format!("{},\n{{\"name\":\"exch", text.trim_end_matches("\n]\n")),
        )
        .unwrap();
        let whole = folder.path().join("whole.json");
        assert_eq!(merge(&[path], "run", &whole).unwrap(), [0]);
        let text = std::fs::read_to_string(whole).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 2);
    }
}
