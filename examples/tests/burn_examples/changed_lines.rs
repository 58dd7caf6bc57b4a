//! How many lines of burn's own loop change under a strategy.

/// The ports: their names in burn, their programs, and the updates of a model in each iteration.
const PORTS: [(&str, &str, usize); 7] = [
    (
        "custom-training-loop",
        include_str!("custom_training_loop.rs"),
        1,
    ),
    ("dqn-agent", include_str!("dqn.rs"), 1),
    ("mnist", include_str!("mnist.rs"), 1),
    ("modern-lstm", include_str!("modern_lstm.rs"), 1),
    ("simple-regression", include_str!("regression.rs"), 1),
    (
        "text-classification",
        include_str!("text_classification.rs"),
        1,
    ),
    ("wgan", include_str!("wgan.rs"), 2),
];

/// The lines of a function, without indents.
fn function<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let start = source.find(&format!("\nfn {name}(")).unwrap();
    let text = &source[start + 1..];
    let end = text.find("\n}\n").unwrap();
    text[..end].lines().map(str::trim).collect()
}

/// The number of lines of `new` that are not in `old`, in this order: what `diff` marks as added or
/// changed.
fn changed(old: &[&str], new: &[&str]) -> usize {
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for (i, left) in old.iter().enumerate() {
        for (j, right) in new.iter().enumerate() {
            common[i + 1][j + 1] = if left == right {
                common[i][j] + 1
            } else {
                common[i][j + 1].max(common[i + 1][j])
            };
        }
    }
    new.len() - common[old.len()][new.len()]
}

/// At most 12 for each update of a model; the page about burn has the numbers.
#[test]
fn few_lines_of_burns_loops_change() {
    let page = include_str!("../../../docs/coming-from-burn.md");
    for (port, source, updates) in PORTS {
        let found = changed(
            &function(source, "burn_loop"),
            &function(source, "our_loop"),
        );
        assert!(found <= 12 * updates, "{port}: {found} lines");
        let row = format!("| `{port}` | {found} |");
        assert!(
            page.contains(&row),
            "no `{row}` in docs/coming-from-burn.md"
        );
    }
}

/// burn's `Learner` keeps its loop; its signature is the same.
#[test]
fn two_lines_of_a_learner_change() {
    let source =
        include_str!("../../../crates/training/distribute-learner/tests/burn_learner/two_lines.rs");
    let body = |name| function(source, name).split_off(1);
    assert_eq!(changed(&body("burn_loop"), &body("our_loop")), 2);
}

#[test]
fn lines_are_counted_as_diff_does() {
    assert_eq!(changed(&["a", "b", "c"], &["a", "b", "c"]), 0);
    assert_eq!(changed(&["a", "b", "c"], &["a", "x", "c", "d"]), 2);
    assert_eq!(changed(&["a", "b", "c"], &["c"]), 0);
    assert_eq!(changed(&[], &["a", "a"]), 2);
    let source = "\nfn f(a: A) {\n    a;\n}\n";
    assert_eq!(function(source, "f"), ["fn f(a: A) {", "a;"]);
}
