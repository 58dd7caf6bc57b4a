//! The picture of docs/observing.md: a trace that `train --trace` has written, cut to a few steps.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::draw::escaped;

/// What was recorded, and what is drawn of it.
pub const TRACE: &str = "docs/trace.json";
pub const PICTURE: &str = "docs/timeline.svg";

const TITLE: &str =
    "Two workers of one replica each, two steps, as `train --trace` has recorded them";
const WIDTH: f64 = 900.0;
const LEFT: f64 = 130.0;
const MARGIN: f64 = 10.0;
const TOP: f64 = 70.0;
const ROW: f64 = 20.0;
const BETWEEN_WORKERS: f64 = 12.0;
/// The advance of a letter.
const LETTER: f64 = 6.0;

/// The colours that people who see red and green alike tell apart (Okabe and Ito).
const COLOURS: [(&str, &str); 10] = [
    ("step", "#dddddd"),
    ("run", "#eeeeee"),
    ("data", "#cc79a7"),
    ("forward", "#56b4e9"),
    ("backward", "#0072b2"),
    ("exchange", "#e69f00"),
    ("wait", "#d55e00"),
    ("barrier", "#f0e442"),
    ("update", "#009e73"),
    ("turn", "#999999"),
];

/// A worker and a thread of it.
type Thread = (u64, u64);

struct Span {
    name: String,
    begin: f64,
    end: f64,
    /// How many others it lies in.
    depth: usize,
    waited_for: Option<u64>,
}

/// Draws the trace.
///
/// # Errors
/// If it is none.
pub fn svg(trace: &str) -> Result<String, String> {
    let events: Vec<Value> = serde_json::from_str(trace).map_err(|error| error.to_string())?;
    let threads = threads(&events);
    let all = || threads.values().flatten();
    let begin = all().map(|span| span.begin).fold(f64::INFINITY, f64::min);
    let end = all().map(|span| span.end).fold(0.0, f64::max);
    if end <= begin {
        return Err("no events".to_owned());
    }
    let scale = (WIDTH - LEFT - MARGIN) / (end - begin);
    let (mut shapes, mut y, mut worker) = (legend(), TOP, None);
    for (thread, spans) in &threads {
        if worker.is_some_and(|worker| worker != thread.0) {
            y += BETWEEN_WORKERS;
        }
        worker = Some(thread.0);
        let name = format!("worker {}: {}", thread.0, thread_name(&events, *thread));
        let _ = writeln!(
            shapes,
            "<text x=\"{MARGIN}\" y=\"{:.0}\">{}</text>",
            y + 14.0,
            escaped(&name)
        );
        for span in spans {
            shapes += &bar(span, y, (begin, scale));
        }
        let depth = spans.iter().map(|span| span.depth).max().unwrap_or(0);
        y += (depth + 1) as f64 * ROW + 6.0;
    }
    let _ = writeln!(
        shapes,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.2} ms</text>",
        WIDTH - MARGIN,
        y + 12.0,
        (end - begin) / 1000.0
    );
    let height = y + 22.0;
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{}</text>\n\
         {shapes}</svg>\n",
        escaped(TITLE)
    ))
}

/// What happened on each thread, outer spans before those in them.
fn threads(events: &[Value]) -> BTreeMap<Thread, Vec<Span>> {
    let mut threads: BTreeMap<Thread, Vec<Span>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let number = |name: &str| event[name].as_f64().unwrap_or(0.0);
        let thread = (number("pid") as u64, number("tid") as u64);
        let begin = number("ts");
        threads.entry(thread).or_default().push(Span {
            name: event["name"].as_str().unwrap_or_default().to_owned(),
            begin,
            end: begin + number("dur"),
            depth: 0,
            waited_for: event["args"]["waited_for"].as_u64(),
        });
    }
    for spans in threads.values_mut() {
        spans.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(b.end.total_cmp(&a.end)));
        let mut open: Vec<f64> = Vec::new();
        for span in spans {
            open.retain(|end| *end > span.begin);
            span.depth = open.len();
            open.push(span.end);
        }
    }
    threads
}

fn thread_name(events: &[Value], thread: Thread) -> &str {
    let mut names = events.iter().filter(|event| event["name"] == "thread_name");
    let name = names.find(|event| event["pid"] == thread.0 && event["tid"] == thread.1);
    let name = name.and_then(|event| event["args"]["name"].as_str());
    // The number of the thread in its pool says nothing.
    name.unwrap_or_default().trim_end_matches(".0")
}

fn bar(span: &Span, y: f64, (begin, scale): (f64, f64)) -> String {
    let (x, y) = (
        LEFT + (span.begin - begin) * scale,
        y + span.depth as f64 * ROW,
    );
    let width = ((span.end - span.begin) * scale).max(0.5);
    let colour = COLOURS.iter().find(|(name, _)| *name == span.name);
    let colour = colour.map_or("#bbbbbb", |(_, colour)| colour);
    let mut text = span.name.clone();
    if let Some(rank) = span.waited_for {
        let _ = write!(text, " (waits for {rank})");
    }
    let took = (span.end - span.begin) / 1000.0;
    let mut shape = format!(
        "<rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{:.0}\" fill=\"{colour}\">\
         <title>{}: {took:.3} ms</title></rect>\n",
        ROW - 3.0,
        escaped(&text)
    );
    let fits = |text: &str| text.len() as f64 * LETTER + 6.0 <= width;
    let shown = [text.as_str(), span.name.as_str()]
        .into_iter()
        .find(|text| fits(text));
    if let Some(shown) = shown {
        let ink = if span.name == "backward" {
            "white"
        } else {
            "black"
        };
        let _ = writeln!(
            shape,
            "<text x=\"{:.1}\" y=\"{:.0}\" fill=\"{ink}\">{}</text>",
            x + 3.0,
            y + 12.5,
            escaped(shown)
        );
    }
    shape
}

fn legend() -> String {
    let (mut shapes, mut x) = (String::new(), MARGIN);
    for (name, colour) in COLOURS {
        let _ = writeln!(
            shapes,
            "<rect x=\"{x:.0}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"48\">{name}</text>",
            x + 16.0
        );
        x += 34.0 + name.len() as f64 * LETTER;
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::svg;

    #[test]
    fn spans_lie_below_those_that_they_are_in() {
        let trace = r#"[
            {"name":"thread_name","ph":"M","pid":1,"tid":2,"args":{"name":"replica-1.0"}},
            {"name":"wait","ph":"X","pid":1,"tid":2,"ts":120,"dur":80},
            {"name":"exchange","ph":"X","pid":1,"tid":2,"ts":100,"dur":900,"args":{"waited_for":0}}
        ]"#;
        let drawn = svg(trace).unwrap();
        assert!(drawn.contains("worker 1: replica-1<"), "{drawn}");
        assert!(drawn.contains("exchange (waits for 0)"), "{drawn}");
        let rows = drawn.lines().filter(|line| line.contains("<title>"));
        let rows: Vec<&str> = rows.map(|row| row.split("y=\"").nth(1).unwrap()).collect();
        assert!(
            rows[0].starts_with("70") && rows[1].starts_with("90"),
            "{rows:?}"
        );
        assert!(svg("[]").is_err() && svg("{").is_err());
    }
}
