//! What a commit does is said by its first line, in at most 72 characters and as an order: "Add",
//! not "Added" or "The addition".

use std::path::Path;
use std::process::Command;

/// The commits after this one are held against the rule.
const SINCE: &str = "725999b87b0e11aea0079e5ad792698aa0101f3a";

const LENGTH_MAX: usize = 72;

/// First words that are no verbs.
const NO_VERBS: [&str; 26] = [
    "A", "All", "An", "And", "As", "At", "By", "Each", "Every", "For", "How", "If", "In", "It",
    "No", "Of", "On", "One", "Some", "That", "The", "There", "This", "What", "When", "With",
];

/// Verbs whose ends look like another form.
const VERBS: [&str; 8] = [
    "Bring", "Embed", "Feed", "Focus", "Ping", "Proceed", "Seed", "Shed",
];

/// Looks at all commits; without git's history there is nothing to look at.
pub fn run(root: &Path) -> Result<String, String> {
    let range = format!("{SINCE}..HEAD");
    let log = Command::new("git")
        .args([
            "-c",
            "safe.directory=*",
            "log",
            "--no-merges",
            "--format=%h %s",
            &range,
        ])
        .current_dir(root)
        .output();
    let log = match log {
        Ok(log) if log.status.success() => String::from_utf8_lossy(&log.stdout).into_owned(),
        _ => return Ok(format!("SKIPPED: there is no history since {SINCE}")),
    };
    let problem = |line: &str| {
        let (commit, subject) = line.split_once(' ')?;
        let problem = check(subject)?;
        Some(format!("{commit}: \"{subject}\" {problem}"))
    };
    let problems: Vec<String> = log.lines().filter_map(problem).collect();
    if problems.is_empty() {
        Ok(format!("{} commits", log.lines().count()))
    } else {
        Err(problems.join("\n"))
    }
}

/// What is wrong with the first line of a message.
///
/// # Errors
/// That, or why there is none.
pub fn check_file(message: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(message);
    let text = text.map_err(|error| format!("{}: {error}", message.display()))?;
    let subject = text.lines().next().unwrap_or_default();
    match check(subject) {
        Some(problem) => Err(format!("\"{subject}\" {problem}")),
        None => Ok(format!("\"{subject}\"")),
    }
}

fn check(subject: &str) -> Option<String> {
    // By git: with what they undo or will be part of.
    let is_gits = |word: &&str| subject.starts_with(word);
    if ["Merge ", "Revert \"", "fixup! ", "squash! "]
        .iter()
        .any(is_gits)
    {
        return None;
    }
    let length = subject.chars().count();
    if length > LENGTH_MAX {
        return Some(format!(
            "has {length} characters; at most {LENGTH_MAX} are shown"
        ));
    }
    if subject.ends_with('.') {
        return Some("ends with a full stop".to_owned());
    }
    let verb = subject.split(' ').next().unwrap_or_default();
    let is_word = |word: &str| word.chars().skip(1).all(|c| c.is_lowercase() || c == '-');
    let is_verb =
        verb.starts_with(char::is_uppercase) && is_word(verb) && !NO_VERBS.contains(&verb);
    let is_other_form = |end: &&str| verb.ends_with(end);
    let is_other = !VERBS.contains(&verb)
        && !verb.ends_with("ss")
        && ["ed", "ing", "s"].iter().any(is_other_form);
    let wrong = !is_verb || is_other;
    wrong.then(|| format!("does not begin with what to do, such as \"Add\", but with \"{verb}\""))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_subject_is_an_order_of_at_most_72_characters() {
        for good in [
            "Add a check of subjects",
            "Pass the token on",
            "Re-check after a stall",
            "Bring the picture up to date",
            "Merge branch 'main' into topic",
            "Revert \"Added a check\"",
        ] {
            assert_eq!(check(good), None);
        }
        let long = format!("Add {}", "x".repeat(69));
        for bad in [
            "",
            "add a check",
            "Added a check",
            "Adding a check",
            "Adds a check",
            "The check",
            "xtask: add a check",
            "CI: add a check",
            "Add a check.",
            &long,
        ] {
            assert!(check(bad).is_some(), "{bad}");
        }
    }
}
