//! Output for people and programs: what is shown while a job runs, and why it ended.

pub mod attempt;
pub mod console;
pub mod failure_report;
pub mod line_deduplicator;
pub mod outcome;
pub mod progress;
mod sink;
pub mod slow_request;
mod small_file;
pub mod verdict;
