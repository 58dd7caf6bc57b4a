//! Which columns are the features and which one is the label, in another table than the model's.

use distribute_readers::{
    CsvColumns, CsvOptions, Examples, LabelColumn, LabelPlace, ReadError, TextOptions, parse_csv,
    parse_texts,
};
use rstest::rstest;

fn csv(text: &str, options: &CsvOptions) -> Result<Examples, ReadError> {
    parse_csv(text.as_bytes(), "a.csv", options)
}

/// As a model is told to read another table that was trained on this one.
fn as_in(trained: &str, label: LabelColumn) -> CsvOptions {
    let options = CsvOptions {
        label,
        ..CsvOptions::default()
    };
    let table = csv(trained, &options).unwrap();
    CsvOptions {
        columns: CsvColumns::Named {
            features: table.column_names().to_vec(),
            label: table.label_name().map(str::to_owned),
        },
        label_place: LabelPlace::After(table.label_place().unwrap()),
        ..CsvOptions::default()
    }
}

fn first(text: &str, options: &CsvOptions) -> (Vec<f32>, Option<i64>) {
    let table = csv(text, options).unwrap();
    let label = table.is_labelled().then(|| table.labels_i64(&[0]).unwrap());
    (table.features_f32(&[0]).unwrap(), label.map(|all| all[0]))
}

fn error(text: &str, options: &CsvOptions) -> String {
    csv(text, options).unwrap_err().to_string()
}

#[rstest]
#[case("v,noise,v,label\n1,2,3,0\n", LabelColumn::Detect)]
#[case("v,v,v,label,noise,v\n1,2,3,0,4,5\n", LabelColumn::Detect)]
#[case(",a,,label\n1,2,3,0\n", LabelColumn::Detect)]
#[case("v,label,v\n1,0,3\n", LabelColumn::Detect)]
#[case("v,label,v\n1,2,0\n", LabelColumn::Last)]
fn columns_of_one_name_are_told_apart_by_their_order(
    #[case] text: &str,
    #[case] label: LabelColumn,
) {
    let options = CsvOptions {
        label: label.clone(),
        ..CsvOptions::default()
    };
    let trained = first(text, &options);
    let options = as_in(text, label);
    assert_eq!(first(text, &options), trained);
    let predicted = CsvOptions {
        label: LabelColumn::Absent,
        ..options
    };
    assert_eq!(first(text, &predicted), (trained.0, None));
}

#[test]
fn columns_of_one_name_keep_their_order_among_others() {
    let options = as_in("v,noise,v,label\n1,2,3,0\n", LabelColumn::Detect);
    let moved = first("label,id,v,v,noise\n1,9,1,3,2\n", &options);
    assert_eq!(moved, (vec![1.0, 2.0, 3.0], Some(1)));
    for (text, count) in [
        (
            "v,noise,v,v,label\n1,2,3,4,0\n",
            "3 columns have the name \"v\", and 2",
        ),
        ("v,noise,label\n1,2,0\n", "needs the columns v, noise, v"),
        (
            "v,noise,v,label,label\n1,2,3,0,1\n",
            "2 columns have the name \"label\", and 1",
        ),
    ] {
        let error = error(text, &options);
        assert!(error.contains(count), "{error}");
    }
    let once = as_in("v,noise,label\n1,2,0\n", LabelColumn::Detect);
    let repeated = error("v,noise,v,label\n1,2,3,0\n", &once);
    assert!(
        repeated.contains("2 columns have the name \"v\""),
        "{repeated}"
    );
    let unnamed = as_in(",a,label\n1,2,0\n", LabelColumn::Detect);
    let repeated = error(",a,,label\n1,2,3,0\n", &unnamed);
    assert!(
        repeated.contains("2 columns have no name, and 1"),
        "{repeated}"
    );
}

#[test]
fn a_label_that_several_columns_could_be_is_refused() {
    let repeated = error("label,a,label\n1,2,0\n", &CsvOptions::default());
    assert!(
        repeated.contains("2 columns have the name \"label\""),
        "{repeated}"
    );
    let named = CsvOptions {
        label: LabelColumn::Name("kind".into()),
        ..CsvOptions::default()
    };
    assert!(error("kind,a,kind\n1,2,0\n", &named).contains("give each column a name"));
    let texts = b"text,label,text\ngood,1,bad\n";
    let repeated = parse_texts(texts, "a.csv", &TextOptions::default()).unwrap_err();
    assert!(
        repeated
            .to_string()
            .contains("2 columns have the name \"text\"")
    );
}

/// The label of a table with a header that was not last is not last without it either.
#[test]
fn without_names_the_label_stands_where_it_stood() {
    let header = "bmi,age,label,w\n";
    let rows = "1.5,2.5,1,3.5\n1.5,3.5,0,2.5\n";
    let options = as_in(&format!("{header}{rows}"), LabelColumn::Detect);
    let trained = (vec![1.5, 2.5, 3.5], Some(1));
    assert_eq!(first(rows, &options), trained);
    let absent = CsvOptions {
        label: LabelColumn::Absent,
        ..options.clone()
    };
    assert_eq!(first(rows, &absent), (trained.0.clone(), None));
    let alone = "1.5,2.5,3.5\n1.5,3.5,2.5\n";
    assert_eq!(first(alone, &absent), (trained.0.clone(), None));
    let last = as_in("a,b,label\n1.5,2.5,1\n", LabelColumn::Detect);
    let missing = error("1.5,2.5\n1.5,3.5\n", &last);
    assert!(missing.contains("2 columns without names"), "{missing}");
    // The order of the model counts, wherever the label stood there.
    let named = CsvOptions {
        label: LabelColumn::Name("label".into()),
        ..options.clone()
    };
    let moved = "w,label,age,bmi\n3.5,1,2.5,1.5\n";
    assert_eq!(first(moved, &named), trained);
    // So it remains when the model goes on with such a table; an older one learns nothing of it.
    let place = |options: &CsvOptions| csv(moved, options).unwrap().label_place();
    assert_eq!(place(&named), Some(2));
    let older = CsvOptions {
        label_place: LabelPlace::Unknown,
        ..named
    };
    assert_eq!(place(&older), None);
    // A model that does not say it.
    let unknown = |label: LabelColumn| CsvOptions {
        label,
        label_place: LabelPlace::Unknown,
        ..options.clone()
    };
    assert_eq!(
        first(&format!("{header}{rows}"), &unknown(LabelColumn::Detect)),
        trained
    );
    assert_eq!(
        first(alone, &unknown(LabelColumn::Absent)),
        (trained.0, None)
    );
    for label in [LabelColumn::Detect, LabelColumn::Absent] {
        let refused = error(rows, &unknown(label));
        assert!(
            refused.contains("put a first line with the names"),
            "{refused}"
        );
    }
    let hostile = CsvOptions {
        label_place: LabelPlace::After(usize::MAX),
        ..options
    };
    assert!(error(rows, &hostile).contains("4 columns"));
}

#[test]
fn a_feature_is_no_label() {
    let text = "bmi,age,label,w\n1.5,2.5,1,0\n";
    let options = CsvOptions {
        label: LabelColumn::Name("w".into()),
        ..as_in(text, LabelColumn::Detect)
    };
    let refused = error(text, &options);
    assert!(
        refused.contains("w is a feature of the model, so it cannot be the label"),
        "{refused}"
    );
}
