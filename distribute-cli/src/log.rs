//! `--log`: the log messages of the libraries, one line each on standard error.
//!
//! With several processes a line names the task of its process in the cluster. If the same line is
//! repeated very often (a scanner connects to a port ten times a second), only a few are shown, and
//! then the number of omitted lines.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use distribute_core::cluster::{Cluster, ProcessEnvironment, detect};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::events::{self, EventName};
use crate::flags::{LogArgs, LogLevel, OutputFormat};
use crate::notes::note;
use crate::phases::Phases;
use crate::repeats::{LeftOut, Repeats};

/// The prefix of this repository's crates, to which `--log` applies.
const OWN: [&str; 2] = ["distribute", "conformance"];

/// Shows log messages until the process ends, and collects phases if requested.
pub(crate) fn install(args: &LogArgs, phases: Option<Phases>) -> Log {
    let lines = Lines {
        level: args.log.filter(),
        format: args.log_format,
        task: task(),
        write: Box::new(note),
        phases,
        repeats: Mutex::default(),
    };
    let lines = Arc::new(lines);
    // Fails only if this was called before.
    let _ = tracing::subscriber::set_global_default(Arc::clone(&lines));
    Log(lines)
}

/// The log of this process.
pub(crate) struct Log(Arc<Lines>);

impl Log {
    /// Prints the number of lines that were omitted at the end.
    pub(crate) fn finish(&self) {
        let left_out = self.0.repeats().take();
        left_out.iter().for_each(|it| self.0.say_left_out(it));
    }
}

/// The task of this process in its cluster, and its rank among the workers.
fn task() -> Option<(String, Option<usize>)> {
    let cluster = Cluster::resolve(&*detect(ProcessEnvironment).resolver);
    // The command that needs the cluster reports an invalid one.
    let cluster = cluster.ok().flatten()?;
    let name = format!("{} {}", cluster.task_type(), cluster.task_id());
    Some((name, cluster.rank()))
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

/// Writes a line for each event. Spans of the phases are collected if requested.
struct Lines {
    level: LevelFilter,
    format: OutputFormat,
    task: Option<(String, Option<usize>)>,
    write: Box<dyn Fn(&str) + Send + Sync>,
    phases: Option<Phases>,
    /// Debug messages are never omitted.
    repeats: Mutex<Repeats>,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.is_span() {
            return self.phases.is_some() && Phases::wants(metadata);
        }
        let own = OWN.iter().any(|name| metadata.target().starts_with(name));
        let most = if own {
            self.level
        } else {
            // Other crates log too much below warnings.
            self.level.min(LevelFilter::WARN)
        };
        *metadata.level() <= most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // Phases use the most detailed level.
        Some(match self.phases {
            Some(_) => LevelFilter::TRACE,
            None => self.level,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let text = self.text(event.metadata(), &fields);
        if *event.metadata().level() <= Level::INFO {
            let (left_out, show) = self.repeats().admit(&text, Instant::now());
            left_out.iter().for_each(|it| self.say_left_out(it));
            if !show {
                return;
            }
        }
        let line = match self.format {
            OutputFormat::Text => text,
            OutputFormat::Json => self.json(event.metadata(), fields),
        };
        (self.write)(&line);
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        match &self.phases {
            Some(phases) => phases.open(span),
            None => Id::from_u64(1),
        }
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        if let Some(phases) = &self.phases {
            phases.record(span, values);
        }
    }

    /// The span of a phase is never cloned.
    fn try_close(&self, span: Id) -> bool {
        if let Some(phases) = &self.phases {
            phases.close(&span);
        }
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    fn repeats(&self) -> MutexGuard<'_, Repeats> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line about omitted lines.
    fn say_left_out(&self, LeftOut { line, count }: &LeftOut) {
        let message = format!("{count} more lines of this kind were omitted: {line}");
        (self.write)(&match self.format {
            OutputFormat::Text => message,
            OutputFormat::Json => {
                let fields = Fields {
                    message,
                    ..Fields::default()
                };
                self.object("info", module_path!(), fields)
            }
        });
    }

    /// `warning: worker 1: a worker is lost (worker=2) [distribute_ps::coordinator]`.
    fn text(&self, metadata: &Metadata<'_>, fields: &Fields) -> String {
        let task = self
            .task
            .as_ref()
            .map_or_else(String::new, |(name, _)| format!("{name}: "));
        let named: Vec<String> = fields
            .others
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) => format!("{name}={text}"),
                other => format!("{name}={other}"),
            })
            .collect();
        let named = if named.is_empty() {
            String::new()
        } else {
            format!(" ({})", named.join(", "))
        };
        let (level, target) = (word(*metadata.level()), metadata.target());
        one_line(&format!(
            "{level}: {task}{}{named} [{target}]",
            fields.message
        ))
    }

    fn json(&self, metadata: &Metadata<'_>, fields: Fields) -> String {
        self.object(word(*metadata.level()), metadata.target(), fields)
    }

    fn object(&self, level: &str, target: &str, fields: Fields) -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let (task, rank) = self.task.clone().unzip();
        events::event(
            EventName::Log,
            [
                (
                    "time",
                    json!(since.map_or(0.0, |since| since.as_secs_f64())),
                ),
                ("level", json!(level)),
                ("task", json!(task)),
                ("rank", json!(rank.flatten())),
                ("target", json!(target)),
                ("message", json!(fields.message)),
                ("fields", Value::Object(fields.others)),
            ],
        )
    }
}

/// The level as in other messages of the program.
fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Escapes control characters: data from peers must not begin a new line or move the cursor.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            line.extend(letter.escape_default())
        } else {
            line.push(letter)
        }
    }
    line
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.others.insert(name.to_string(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, json!(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, json!(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, distribute_fit::json_number(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, json!(value));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.set(field, json!(value.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written while events of every level come from this crate and from another one.
    fn written(
        level: LogLevel,
        format: OutputFormat,
        task: Option<(String, Option<usize>)>,
    ) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&lines);
        let subscriber = Lines {
            level: level.filter(),
            format,
            task,
            write: Box::new(move |line| writer.lock().unwrap().push(line.to_string())),
            phases: None,
            repeats: Mutex::default(),
        };
        tracing::subscriber::with_default(subscriber, || {
            let error = std::io::Error::other("no\nspace\u{1b}[2J");
            tracing::error!(target: "distribute_core", %error, "not saved");
            tracing::warn!(target: "distribute_ps", worker = 2, "a worker is lost");
            tracing::info!(target: "distribute_ps", rate = f64::NAN, done = true, "faster");
            tracing::debug!(target: "distribute_net", "no handshake");
            let span = tracing::trace_span!(target: "distribute_net", "dial");
            span.in_scope(|| tracing::trace!(target: "distribute_net", ?span, "dials"));
            tracing::warn!(target: "h2", "odd");
            tracing::info!(target: "h2", "a frame");
        });
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    #[test]
    fn a_level_shows_its_events_and_those_above() {
        let counts = [
            (LogLevel::Off, 0),
            (LogLevel::Error, 1),
            (LogLevel::Warn, 3),
            (LogLevel::Info, 4),
            (LogLevel::Debug, 5),
            (LogLevel::Trace, 6),
        ];
        for (level, count) in counts {
            let lines = written(level, OutputFormat::Text, None);
            assert_eq!(lines.len(), count, "{level:?}: {lines:?}");
        }
    }

    #[test]
    fn a_line_names_the_process_and_is_one_line() {
        let task = Some(("worker 1".to_string(), Some(1)));
        let lines = written(LogLevel::Info, OutputFormat::Text, task);
        insta::assert_snapshot!(lines.join("\n"), @r"
        error: worker 1: not saved (error=no\nspace\u{1b}[2J) [distribute_core]
        warning: worker 1: a worker is lost (worker=2) [distribute_ps]
        info: worker 1: faster (done=true, rate=NaN) [distribute_ps]
        warning: worker 1: odd [h2]
        ");
    }

    #[test]
    fn json_has_the_same_in_fields() {
        let task = Some(("evaluator 0".to_string(), None));
        let lines = written(LogLevel::Info, OutputFormat::Json, task);
        let line: Value = serde_json::from_str(&lines[2]).unwrap();
        assert!(line["time"].as_f64().unwrap() > 1e9);
        assert_eq!(
            (&line["event"], &line["level"]),
            (&json!("log"), &json!("info"))
        );
        assert_eq!(
            (&line["task"], &line["rank"]),
            (&json!("evaluator 0"), &Value::Null)
        );
        assert_eq!(line["message"], "faster");
        assert_eq!(line["fields"], json!({"rate": "NaN", "done": true}));
        let line: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(line["fields"]["error"], "no\nspace\u{1b}[2J");
    }

    /// A person reads the fields of warnings: they have a message, not the insides of a type.
    #[test]
    fn no_warning_shows_the_insides_of_a_type() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (mut folders, mut calls) = (vec![root], 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() {
                    let sources = !name.starts_with('.') && !["target", "tests"].contains(&&*name);
                    folders.extend(sources.then_some(path));
                    continue;
                }
                if !name.ends_with(".rs") {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                for level in ["warn", "error", "info"] {
                    for call in text.split(&format!("tracing::{level}!(")).skip(1) {
                        let call = call.split(");").next().unwrap().split('"').next().unwrap();
                        assert!(!call.contains('?'), "{}: {call}", path.display());
                        calls += 1;
                    }
                }
            }
        }
        assert!(calls > 10, "{calls}");
    }
}
