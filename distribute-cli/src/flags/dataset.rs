//! Values of flags about data sets by their names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use distribute_classifier::{ScaleName, SplitName, TargetsName};
use distribute_readers::{CsvHeader, ImageColor};

/// A value with its name on the command line and what `--help` says of it.
type Offer<T> = (&'static str, Option<&'static str>, T);

/// Takes one of these names, in capitals too.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    offers: [Offer<T>; N],
) -> impl TypedValueParser<Value = T> {
    let names = offers.map(|(name, help, _)| {
        let value = PossibleValue::new(name);
        match help {
            Some(help) => value.help(help),
            None => value,
        }
    });
    PossibleValuesParser::new(names).try_map(move |text| {
        let named = |offer: &&Offer<T>| offer.0.eq_ignore_ascii_case(&text);
        let found = offers.iter().find(named).map(|(_, _, value)| *value);
        found.ok_or_else(|| format!("unknown name `{text}`"))
    })
}

pub(super) fn targets() -> impl TypedValueParser<Value = TargetsName> {
    let auto = "Classes, unless data, model and loss are of values";
    one_of([
        ("auto", Some(auto), TargetsName::Auto),
        (
            "classes",
            Some("One class per example"),
            TargetsName::Classes,
        ),
        (
            "values",
            Some("As many values per example as the model has outputs"),
            TargetsName::Values,
        ),
    ])
}

pub(super) fn scale() -> impl TypedValueParser<Value = ScaleName> {
    let auto = "Bytes by 255, unless the model rescales them itself; other types are not \
                changed";
    one_of([
        ("auto", Some(auto), ScaleName::Auto),
        ("none", None, ScaleName::None),
        ("255", None, ScaleName::By255),
    ])
}

pub(super) fn split() -> impl TypedValueParser<Value = SplitName> {
    let offer = |split: SplitName, help| (split.name(), Some(help), split);
    one_of([
        offer(SplitName::Train, "The training examples"),
        offer(SplitName::Test, "The test examples"),
        offer(SplitName::All, "Both"),
    ])
}

pub(super) fn csv_header() -> impl TypedValueParser<Value = CsvHeader> {
    let auto = "If none of its fields is a number; ambiguous lines are an error";
    one_of([
        ("auto", Some(auto), CsvHeader::Detect),
        ("yes", None, CsvHeader::Present),
        ("no", None, CsvHeader::Absent),
    ])
}

pub(super) fn color_mode() -> impl TypedValueParser<Value = ImageColor> {
    one_of([
        ("as-stored", None, ImageColor::AsStored),
        ("grayscale", None, ImageColor::Grayscale),
        ("rgb", None, ImageColor::Rgb),
    ])
}

/// The byte that separates the fields of a table.
pub(super) fn delimiter(text: &str) -> Result<char, String> {
    match (text, text.as_bytes()) {
        ("tab" | "\\t", _) => Ok('\t'),
        (_, [byte]) if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r' | b'.') => {
            Ok(char::from(*byte))
        }
        _ => Err("one character such as ; or | is needed, or `tab`".to_string()),
    }
}
