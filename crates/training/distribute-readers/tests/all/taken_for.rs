//! Tables and texts that look like something else, and are taken for what they are.

use distribute_readers::{
    CsvOptions, Examples, ReadError, TextOptions, parse_csv, parse_texts, read_text_lines,
};
use tempfile::tempdir;

use crate::common::*;

fn csv(text: &str, options: &CsvOptions) -> Result<Examples, ReadError> {
    parse_csv(text.as_bytes(), "a.csv", options)
}

fn first(text: &str, options: &CsvOptions) -> (Vec<f32>, Option<i64>) {
    let table = csv(text, options).unwrap();
    let label = table.is_labelled().then(|| table.labels_i64(&[0]).unwrap());
    (table.features_f32(&[0]).unwrap(), label.map(|all| all[0]))
}

fn error(text: &str, options: &CsvOptions) -> String {
    csv(text, options).unwrap_err().to_string()
}

#[test]
fn text_that_begins_as_a_format_does_is_text() {
    let table = "BMI,PAR1,label\n1.5,2.5,1\n";
    assert_eq!(
        first(table, &CsvOptions::default()),
        (vec![1.5, 2.5], Some(1))
    );
    let folder = tempdir().unwrap();
    write(folder.path(), "a.txt", b"<3 this film\nGIF89a is old\n");
    let lines = read_text_lines(folder.path().join("a.txt")).unwrap();
    assert_eq!(lines.len(), 2);
    for other in [&b"<!doctype html>\n"[..], b"BM\x10\0\0", b"PAR1\x15\0"] {
        write(folder.path(), "a.txt", other);
        read_text_lines(folder.path().join("a.txt")).unwrap_err();
    }
}

/// Marks inside of a field begin nothing, however many there are.
#[test]
fn a_mark_that_is_no_quotation_does_not_open_the_last_line() {
    let read = |text: &str| parse_texts(text.as_bytes(), "a.csv", &TextOptions::default());
    let good = "text,label\na 5\" screen,1\n\"two\nlines\",0";
    for text in [
        good,
        &good.replace(",1", " or 7\",1"),
        &good.replace("5\"", "5\"\"\""),
        &good.replace("two", "t\"\"wo"),
        &format!("\u{feff}{}", good.replace("text", "\"text\"")),
    ] {
        for end in ["", "\n"] {
            assert_eq!(read(&format!("{text}{end}")).unwrap().len(), 2, "{text:?}");
        }
    }
    // An even number of marks does not close the last one.
    let open = "text,label\na 5\" screen,1\n\"two,0\nlines,1\n";
    let error = read(open).unwrap_err().to_string();
    assert!(error.contains("line 3: a quotation mark"), "{error}");
}

#[test]
fn a_delimiter_that_is_asked_for_is_not_doubted() {
    let sure = CsvOptions {
        delimiter_is_sure: true,
        ..CsvOptions::default()
    };
    for text in ["a|b,label\n1.5,1\n", "a|b|c,label\n1.5,1\n"] {
        assert_eq!(first(text, &sure), (vec![1.5], Some(1)));
    }
    assert_eq!(
        first("a|b,label\n1.5,1\n", &CsvOptions::default()).1,
        Some(1)
    );
    assert!(error("a|b|c,label\n1.5,1\n", &CsvOptions::default()).contains("vertical bars"));
}
