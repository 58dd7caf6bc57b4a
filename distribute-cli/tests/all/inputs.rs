//! What a model was trained on is known to its checkpoint: names, order, scale, labels; and what is
//! only asked for answers needs no labels.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use distribute_core::checkpoint::{CheckpointManager, Metadata, load_latest};
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use rstest::rstest;
use serde_json::Value;

use crate::common::{Finished, last_event, run, succeed};

const TRAIN: &str = "train --replicas 1 --epochs 1 --seed 3";

/// 40 lines of two columns, of which `a` decides the class.
fn table(folder: &Path, name: &str, header: &str, line: impl Fn(usize, f64, usize) -> String) {
    let lines = (0..40).map(|i| line(i, ((i * 7) % 40) as f64 / 40.0, (i * 7) % 40 / 20));
    let text: String = lines.map(|line| line + "\n").collect();
    fs::write(folder.join(name), format!("{header}{text}")).unwrap();
}

fn tables(folder: &Path) {
    table(folder, "t.csv", "a,b,kind\n", |i, a, class| {
        format!("{a},{i}.5,{class}")
    });
    table(folder, "swapped.csv", "kind,b,a\n", |i, a, class| {
        format!("{class},{i}.5,{a}")
    });
    table(folder, "extra.csv", "a,id,b,kind\n", |i, a, class| {
        format!("{a},7,{i}.5,{class}")
    });
    table(folder, "others.csv", "x,y,kind\n", |i, a, class| {
        format!("{a},{i}.5,{class}")
    });
    table(folder, "unlabelled.csv", "b,a\n", |i, a, _| {
        format!("{i}.5,{a}")
    });
    table(folder, "bare.csv", "", |i, a, _| format!("{a},{i}.5"));
    table(folder, "semicolons.csv", "a;b;kind\n", |i, a, class| {
        format!("{a};{i}.5;{class}")
    });
}

fn evaluate(folder: &Path, data: &str) -> Finished {
    run(
        folder,
        &format!("evaluate --checkpoint-dir saved --split all --dataset {data}"),
    )
}

fn predict(folder: &Path, data: &str) -> Finished {
    run(
        folder,
        &format!("predict --checkpoint-dir saved --dataset {data}"),
    )
}

/// What comes behind the name of the data set.
fn measured(finished: &Finished) -> &str {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout.split_once(": ").unwrap().1
}

#[test]
fn columns_are_matched_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tables(folder);
    let train = run(
        folder,
        &format!("{TRAIN} --checkpoint-dir saved --dataset csv:t.csv"),
    );
    assert_eq!(train.code, Some(0), "{}", train.stderr);
    let said = "inputs: 2 columns by name (a, b); f32 unchanged; label: kind";
    assert!(train.told().contains(said), "{}", train.stderr);
    let own = evaluate(folder, "csv:t.csv");
    assert_eq!(
        measured(&evaluate(folder, "csv:swapped.csv")),
        measured(&own)
    );
    let extra = evaluate(folder, "csv:extra.csv");
    assert_eq!(measured(&extra), measured(&own));
    assert!(extra.stderr.contains("not used: id"), "{}", extra.stderr);
    for command in [evaluate, predict] {
        let others = command(folder, "csv:others.csv");
        assert_eq!(others.code, Some(2));
        let lists = "needs the columns a, b, but has the columns x, y, kind";
        assert!(others.stderr.contains(lists), "{}", others.stderr);
    }
    let resumed = "train --replicas 1 --seed 3 --epochs 2 --resume --checkpoint-dir saved";
    succeed(folder, &format!("{resumed} --dataset csv:swapped.csv"));
}

#[test]
fn what_is_only_asked_for_answers_needs_no_labels() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tables(folder);
    succeed(
        folder,
        &format!("{TRAIN} --checkpoint-dir saved --dataset csv:t.csv"),
    );
    let own = succeed(folder, "predict --checkpoint-dir saved --split all");
    for data in ["csv:unlabelled.csv", "csv:bare.csv"] {
        let answers = predict(folder, data);
        assert_eq!(
            (answers.code, &answers.stdout),
            (Some(0), &own),
            "{}",
            answers.stderr
        );
        assert!(answers.stderr.contains("no labels"), "{}", answers.stderr);
        assert_eq!(
            evaluate(folder, data).code,
            Some(2),
            "there is nothing to measure"
        );
    }
}

/// An IDX file of bytes, with these sizes.
fn idx(path: &Path, sizes: &[u32], values: &[u8]) {
    let mut data = vec![0, 0, 8, u8::try_from(sizes.len()).unwrap()];
    data.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
    data.extend(values);
    fs::write(path, data).unwrap();
}

/// Images of two classes, bright above or below, and their labels, as MNIST has them.
fn idx_folder(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for (split, count) in [("train", 12_u32), ("t10k", 4)] {
        let pixels = (0..count).flat_map(|image| {
            (0..16).map(move |pixel| {
                if (pixel < 8) == (image % 2 == 0) {
                    250
                } else {
                    5
                }
            })
        });
        let pixels: Vec<u8> = pixels.collect();
        let labels: Vec<u8> = (0..count).map(|image| (image % 2) as u8).collect();
        let images = folder.join(format!("{split}-images-idx3-ubyte"));
        idx(&images, &[count, 4, 4], &pixels);
        idx(
            &folder.join(format!("{split}-labels-idx1-ubyte")),
            &[count],
            &labels,
        );
    }
}

#[test]
fn images_in_idx_files_get_answers_with_labels_and_without() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    idx_folder(&folder.join("all"));
    let train = "train --model mlp --replicas 1 --epochs 40 --seed 3 --dataset idx:all";
    succeed(folder, &format!("{train} --checkpoint-dir saved"));
    let of_split = |split: &str| {
        let predict = format!("predict --checkpoint-dir saved --dataset idx:all --split {split}");
        succeed(folder, &predict)
    };
    // The answers without the names of the sets, which count their rows each for itself.
    let answers = |csv: &str| -> Vec<String> {
        let rows = csv
            .lines()
            .skip(1)
            .map(|line| line.split(',').skip(1).take(2));
        rows.map(|fields| fields.collect::<Vec<_>>().join(","))
            .collect()
    };
    let (own, test) = (of_split("all"), of_split("test"));
    let classes: Vec<String> = answers(&own).iter().map(|it| it[..1].to_string()).collect();
    assert_eq!(classes.concat(), "0101010101010101");
    for left in ["train", "t10k", "both"] {
        let bare = format!("bare-{left}");
        idx_folder(&folder.join(&bare));
        for split in ["train", "t10k"] {
            // Labels of the training images may be there, and say which images are asked for.
            if left != "train" || split == "t10k" {
                let labels = folder
                    .join(&bare)
                    .join(format!("{split}-labels-idx1-ubyte"));
                fs::remove_file(labels).unwrap();
            }
            if left == "t10k" && split == "train" {
                let images = folder.join(&bare).join("train-images-idx3-ubyte");
                fs::remove_file(images).unwrap();
            }
        }
        for data in [format!("idx:{bare}"), format!("mnist --data-dir {bare}")] {
            let bare = predict(folder, &data);
            assert_eq!(bare.code, Some(0), "{}", bare.stderr);
            let wanted = if left == "both" { &own } else { &test };
            assert_eq!(answers(&bare.stdout), answers(wanted), "{left} {data}");
            assert!(
                bare.stderr.contains("no labels were read"),
                "{}",
                bare.stderr
            );
        }
        let measured = evaluate(folder, &format!("idx:{bare}"));
        assert_eq!(measured.code, Some(2), "{}", measured.stderr);
    }
    // One file of images alone.
    let one = predict(folder, "idx:all/t10k-images-idx3-ubyte");
    assert_eq!(answers(&one.stdout), answers(&test), "{}", one.stderr);
    // What is there and broken is said, not passed over.
    let torn = folder.join("bare-both/t10k-images-idx3-ubyte");
    fs::write(torn, "<html>").unwrap();
    assert_eq!(predict(folder, "idx:bare-both").code, Some(2));
}

#[test]
fn texts_without_labels_get_answers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let film = |i: usize| format!("{} film {i},{}\n", ["bad", "good"][i % 2], i % 2);
    let films: String = (0..30).map(film).collect();
    fs::write(folder.join("films.csv"), format!("text,label\n{films}")).unwrap();
    fs::write(folder.join("new.csv"), "text\ngood film\nbad film\n").unwrap();
    fs::write(folder.join("new.txt"), "good film\nbad film\n").unwrap();
    let text = "--dataset csv:films.csv --model text";
    succeed(folder, &format!("{TRAIN} --checkpoint-dir saved {text}"));
    let [csv, lines] = ["csv:new.csv", "text:new.txt"].map(|data| predict(folder, data));
    assert_eq!(
        (csv.code, csv.stdout.lines().count()),
        (Some(0), 3),
        "{}",
        csv.stderr
    );
    assert_eq!(csv.stdout, lines.stdout, "{}", lines.stderr);
    let trained = run(folder, &format!("{TRAIN} --dataset text:new.txt"));
    assert_eq!(trained.code, Some(2), "lines have no labels to learn");
}

/// A PNG image of 8 x 8 equal pixels.
fn png(value: u8, color: bool) -> Vec<u8> {
    let image: DynamicImage = if color {
        RgbImage::from_pixel(8, 8, image::Rgb([value; 3])).into()
    } else {
        GrayImage::from_pixel(8, 8, image::Luma([value])).into()
    };
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[test]
fn pictures_get_answers_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (class, base) in [("dark", 10), ("light", 200)] {
        fs::create_dir_all(folder.join("pictures").join(class)).unwrap();
        for i in 0..6 {
            let path = folder.join(format!("pictures/{class}/{i}.png"));
            fs::write(path, png(base + i, false)).unwrap();
        }
    }
    fs::create_dir(folder.join("new")).unwrap();
    fs::write(folder.join("new/b.png"), png(20, false)).unwrap();
    fs::write(folder.join("new/a.png"), png(210, true)).unwrap();
    let images = "--dataset images --data-dir pictures --model mlp";
    let trained = run(folder, &format!("{TRAIN} --checkpoint-dir saved {images}"));
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    assert!(
        trained.stderr.contains("inputs: u8 divided by 255"),
        "{}",
        trained.stderr
    );
    // The folder is known.
    succeed(folder, "evaluate --checkpoint-dir saved");
    let all = succeed(folder, "predict --checkpoint-dir saved --split all");
    assert_eq!(all.lines().count(), 13);
    let new = predict(folder, "images:new");
    assert_eq!(new.code, Some(0), "{}", new.stderr);
    assert!(
        new.stdout.starts_with("index,label,probability,file\n0,"),
        "{}",
        new.stdout
    );
    assert!(
        new.stdout.lines().nth(1).unwrap().ends_with(",a.png"),
        "{}",
        new.stdout
    );
    assert_eq!(predict(folder, "images:new/b.png").code, Some(0));
    // Training wants classes, and pictures of one kind unless they are converted.
    fs::write(folder.join("pictures/dark/colour.png"), png(10, true)).unwrap();
    let mixed = run(folder, &format!("{TRAIN} {images}"));
    assert_eq!(mixed.code, Some(2));
    assert!(mixed.stderr.contains("--color-mode"), "{}", mixed.stderr);
    for mode in ["grayscale", "rgb"] {
        succeed(folder, &format!("{TRAIN} {images} --color-mode {mode}"));
    }
}

#[rstest]
#[case("csv:semicolons.csv", "--csv-delimiter ';'", "--csv-delimiter ;")]
fn advice_for_tables_can_be_followed(#[case] data: &str, #[case] advice: &str, #[case] flag: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tables(folder);
    let train = format!("{TRAIN} --dataset {data}");
    let refused = run(folder, &train);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains(advice), "{}", refused.stderr);
    succeed(folder, &format!("{train} {flag} --checkpoint-dir saved"));
    // It need not be said again.
    succeed(folder, "evaluate --checkpoint-dir saved");
}

/// A last column of numbers with fractions is a target: a line says what was taken.
#[test]
fn what_is_taken_for_the_label_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    table(folder, "kind_first.csv", "kind,a,b\n", |i, a, class| {
        format!("{class},{i}.5,{a}")
    });
    let train = format!("{TRAIN} --dataset csv:kind_first.csv");
    let told = run(folder, &train).told();
    assert!(told.contains("label: b"), "{told}");
    assert!(told.contains("targets: one value per example"), "{told}");
    let told = run(folder, &format!("{train} --label-column kind")).told();
    assert!(told.contains("label: kind"), "{told}");
    assert!(!told.contains("targets:"), "{told}");
}

/// A folder like MNIST's, with 12 training and 4 test images of 4 x 4 bytes of two classes.
fn bytes(folder: &Path) {
    let file = |name: &str, rank: u8, extents: &[u32], bytes: Vec<u8>| {
        let extents = extents.iter().flat_map(|extent| extent.to_be_bytes());
        let all = [0, 0, 8, rank].into_iter().chain(extents).chain(bytes);
        fs::write(folder.join(name), all.collect::<Vec<u8>>()).unwrap();
    };
    for (name, count) in [("train", 12), ("t10k", 4)] {
        let pixels = (0..count)
            .flat_map(|i| vec![i as u8 % 2 * 200; 16])
            .collect();
        file(
            &format!("{name}-images-idx3-ubyte"),
            3,
            &[count, 4, 4],
            pixels,
        );
        let labels = (0..count).map(|i| i as u8 % 2).collect();
        file(&format!("{name}-labels-idx1-ubyte"), 1, &[count], labels);
    }
}

/// A model of images of 4 x 4 pixels: layers before it, and what it was compiled with.
fn model(folder: &Path, name: &str, first: &str, compiled: &str) {
    let text = format!(
        r#"{{"class_name":"Sequential","config":{{"name":"m","layers":[
        {{"class_name":"InputLayer","config":{{"batch_shape":[null,4,4,1]}}}},{first}
        {{"class_name":"Flatten","config":{{}}}},
        {{"class_name":"Dense","config":{{"units":2,"activation":"softmax"}}}}]}}{compiled}}}"#
    );
    fs::write(folder.join(name), text).unwrap();
}

#[test]
fn bytes_are_scaled_once_and_the_checkpoint_knows_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    bytes(folder);
    let rescaling = |scale: &str| {
        let config = format!(r#"{{"name":"r","scale":{scale},"offset":0.0}}"#);
        format!(r#"{{"class_name":"Rescaling","config":{config}}},"#)
    };
    model(folder, "bytes.json", &rescaling("0.00392156862745098"), "");
    model(folder, "small.json", &rescaling("2.0"), "");
    let own = "u8 unchanged, which the layer r of the model rescales";
    for (flags, said) in [
        ("--model bytes.json --checkpoint-dir saved", own),
        ("--model bytes.json --scale 255", "u8 divided by 255"),
        ("--model small.json", "u8 divided by 255"),
        ("--model small.json --scale none", "u8 unchanged"),
    ] {
        let trained = run(folder, &format!("{TRAIN} --dataset idx:. {flags}"));
        assert_eq!(trained.code, Some(0), "{}", trained.stderr);
        assert!(trained.told().contains(said), "{flags}: {}", trained.stderr);
    }
    let evaluate = "evaluate --checkpoint-dir saved --output json";
    let own = last_event(&succeed(folder, evaluate));
    let divided = run(folder, &format!("{evaluate} --scale 255"));
    assert_ne!(own["loss"], last_event(&divided.stdout)["loss"]);
    assert!(
        divided.stderr.contains("trained on u8 unchanged"),
        "{}",
        divided.stderr
    );
    // A run that goes on with another scale would be another run.
    let resumed = "train --replicas 1 --seed 3 --epochs 2 --resume --checkpoint-dir saved";
    let refused = run(folder, &format!("{resumed} --scale 255"));
    assert_eq!(refused.code, Some(2));
    let said = "--scale is 255 in this run and none in the checkpoint";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    succeed(folder, resumed);
}

#[test]
fn columns_of_one_name_and_a_label_in_the_middle_are_what_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train = "train --replicas 1 --epochs 3 --seed 3 --checkpoint-dir saved --dataset csv:t.csv";
    let of_all = |data: &str| {
        let evaluated = evaluate(folder, data);
        (measured(&evaluated).to_string(), evaluated.told())
    };
    let start = |header: &str, line: fn(usize, f64, usize) -> String| {
        let _ = fs::remove_dir_all(folder.join("saved"));
        table(folder, "t.csv", header, line);
        table(folder, "bare.csv", "", line);
        let trained = run(folder, train);
        assert_eq!(trained.code, Some(0), "{}", trained.stderr);
        let (with_names, told) = of_all("csv:t.csv");
        // In the order of the training, so it is a second way to the same numbers.
        assert_eq!(of_all("csv:bare.csv").0, with_names);
        (with_names, trained.told(), told)
    };
    let (twice, trained, told) = start("v,noise,v,label\n", |i, a, class| {
        format!("{a},{i}.5,{},{class}", 1.0 - a)
    });
    for told in [trained, told] {
        let line = "several columns have the name v; they are told apart by their order";
        assert!(told.contains(line), "{told}");
    }
    table(folder, "moved.csv", "label,v,v,noise\n", |i, a, class| {
        format!("{class},{a},{},{i}.5", 1.0 - a)
    });
    assert_eq!(of_all("csv:moved.csv").0, twice);
    table(folder, "more.csv", "v,v,v,noise,label\n", |i, a, class| {
        format!("{a},{a},{a},{i}.5,{class}")
    });
    let refused = evaluate(folder, "csv:more.csv");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("3 columns have the name \"v\""));
    start("bmi,age,label,w\n", |i, a, class| {
        format!("{a},{i}.5,{class},{}.25", i % 3)
    });
    let refused = evaluate(folder, "csv:t.csv --label-column w");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("w is a feature of the model"));
    let predicted = predict(folder, "csv:bare.csv");
    assert_eq!(predicted.code, Some(0), "{}", predicted.stderr);
}

const COMPILED: &str = r#","compile_config":{"loss":"mse","metrics":["accuracy","AUC"],
    "optimizer":{"class_name":"SGD","config":{"name":"SGD","learning_rate":0.0625,"momentum":0.9,
    "weight_decay":null,"clipnorm":null,"global_clipnorm":2.0,"use_ema":false,
    "ema_momentum":0.99,"ema_overwrite_frequency":null,"nesterov":true}}}"#;

#[test]
fn a_model_is_trained_with_what_it_was_compiled_with() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    bytes(folder);
    model(folder, "m.json", "", COMPILED);
    model(
        folder,
        "other.json",
        "",
        r#","compile_config":{"loss":"ctc"}"#,
    );
    let start = |flags: &str| {
        let trained = run(
            folder,
            &format!("{TRAIN} --dataset idx:. --output json {flags}"),
        );
        assert_eq!(trained.code, Some(0), "{}", trained.stderr);
        let first = trained.stdout.lines().next().unwrap().to_string();
        (first, trained.told())
    };
    let (own, told) = start("--model m.json --checkpoint-dir saved");
    for part in [
        r#""loss":"mse""#,
        r#""optimizer":"sgd""#,
        r#""learning_rate":0.0625"#,
    ] {
        assert!(own.contains(part), "{part} in {own}");
    }
    assert!(told.contains("metrics: accuracy, auc"), "{told}");
    assert!(!told.contains("not used"), "{told}");
    // What older versions of Keras wrote changes the learning rate.
    let decaying = |decay: &str| {
        COMPILED.replace(
            "\"weight_decay\"",
            &format!("\"decay\":{decay},\"weight_decay\""),
        )
    };
    model(folder, "decay.json", "", &decaying("0.01"));
    let (_, told) = start("--model decay.json");
    assert!(told.contains("decay (use --lr-schedule)"), "{told}");
    model(folder, "decay.json", "", &decaying("0.0"));
    let (_, told) = start("--model decay.json");
    assert!(!told.contains("decay"), "{told}");
    let flags = "--loss cross-entropy --optimizer adam";
    let (asked, _) = start(&format!("--model m.json {flags}"));
    for part in [r#""loss":"cross-entropy""#, r#""optimizer":"adam""#] {
        assert!(asked.contains(part), "{part} in {asked}");
    }
    succeed(
        folder,
        "train --replicas 1 --seed 3 --epochs 2 --resume --checkpoint-dir saved",
    );
    let other = format!("{TRAIN} --dataset idx:. --model other.json");
    let refused = run(folder, &other);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("ctc") && refused.stderr.contains("--loss cross-entropy"));
    succeed(folder, &format!("{other} --loss cross-entropy"));
}

/// Changes what the newest checkpoint says of itself.
fn rewrite(folder: &Path, change: impl FnOnce(&mut Metadata)) {
    let saved = folder.join("saved");
    let (_, mut checkpoint) = load_latest(&saved).unwrap().found.unwrap();
    change(&mut checkpoint.metadata);
    let manager = CheckpointManager::open(saved).unwrap();
    manager.save(&checkpoint).unwrap();
}

#[test]
fn a_run_goes_on_with_its_own_loss_whatever_its_model_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    bytes(folder);
    model(folder, "m.json", "", COMPILED);
    let train = "train --replicas 1 --seed 3 --dataset idx:. --model m.json --output json";
    let whole = last_event(&succeed(
        folder,
        &format!("{train} --loss cross-entropy --epochs 2"),
    ));
    let saved = format!("{train} --checkpoint-dir saved");
    succeed(folder, &format!("{saved} --loss cross-entropy --epochs 1"));
    // As it was saved when there was no other loss.
    rewrite(folder, |metadata| {
        let extra = metadata.extra.get_mut("distribute-cli").unwrap();
        extra.as_object_mut().unwrap().remove("loss");
        let configuration = extra["configuration"].as_object_mut().unwrap();
        assert_eq!(configuration.remove("--loss").unwrap(), "cross-entropy");
    });
    let resume = format!("{saved} --resume --epochs 2");
    let other = run(folder, &format!("{resume} --loss mse"));
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    let said = "--loss is mse in this run and cross-entropy in the checkpoint";
    assert!(other.stderr.contains(said), "{}", other.stderr);
    let resumed = last_event(&succeed(folder, &resume));
    assert_eq!(resumed["weights_sha256"], whole["weights_sha256"]);
    // It says so again, and goes on with or without the flag.
    succeed(folder, &format!("{saved} --resume --epochs 3"));
    succeed(
        folder,
        &format!("{saved} --resume --epochs 4 --loss cross-entropy"),
    );
}

#[test]
fn a_loss_of_the_model_file_may_be_named_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    bytes(folder);
    model(folder, "m.json", "", COMPILED);
    let saved = "train --replicas 1 --seed 3 --dataset idx:. --model m.json --checkpoint-dir saved";
    succeed(folder, &format!("{saved} --epochs 1"));
    // As it was saved when the list of flags had what was typed.
    rewrite(folder, |metadata| {
        let extra = metadata.extra.get_mut("distribute-cli").unwrap();
        extra["configuration"]["--loss"] = Value::Null;
        // And when the numbers of the file were not taken.
        metadata.optimizer.hyper_parameters["momentum"] = 0.5.into();
    });
    let resume = format!("{saved} --resume --epochs 2");
    succeed(folder, &format!("{resume} --loss mse"));
    let (_, after) = load_latest(folder.join("saved")).unwrap().found.unwrap();
    assert_eq!(after.metadata.optimizer.hyper_parameters["momentum"], 0.5);
    let other = run(
        folder,
        &format!("{saved} --resume --epochs 3 --loss cross-entropy"),
    );
    assert_eq!(other.code, Some(2));
    assert!(other.stderr.contains("--loss is"), "{}", other.stderr);
}

#[test]
fn what_is_no_model_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.h5"), b"\x89HDF\r\n\x1a\n\0").unwrap();
    for (model, part) in [
        ("m.h5", "a damaged HDF5 file"),
        ("gone.json", "no model file gone.json"),
    ] {
        let refused = run(folder.path(), &format!("{TRAIN} --model {model}"));
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
}
