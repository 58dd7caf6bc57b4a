//! What the data sets hold, and their batches.

use std::path::{Path, PathBuf};

use burn::tensor::Int;
use distribute_core::{Device, Result, Tensor, TensorData};
use distribute_data::readers::{
    self, CsvColumns, CsvHeader, CsvOptions, Examples, Features, ImageColor, LabelColumn,
    LabelPlace, Labels, ReadError, TextOptions, TrainTest,
};
use distribute_data::{Dataset, Weighted};

use crate::failure::Failure;
use crate::flags::{CsvHeaderName, DataArgs, DatasetName};
use crate::split::Parts;

/// Classes of MNIST and Fashion-MNIST.
const MNIST_CLASSES: usize = 10;

impl DatasetName {
    /// The model that is trained on it unless another one is named.
    pub(crate) fn default_model(&self) -> &'static str {
        match self {
            Self::Digits => "digits-cnn",
            Self::Mnist | Self::FashionMnist | Self::Images | Self::ImagesAt(_) | Self::Idx(_) => {
                "mnist-cnn"
            }
            Self::Csv(..) | Self::Npz(_) => "mlp",
            Self::Text(_) => "text",
        }
    }

    /// The same with what is known of a table's first line.
    ///
    /// # Errors
    /// If it is said of something else than a table.
    pub(crate) fn with_header(self, header: Option<CsvHeaderName>) -> Result<Self, Failure> {
        match (self, header) {
            (data, None) => Ok(data),
            (Self::Csv(path, _), Some(header)) => Ok(Self::Csv(path, header.into())),
            (other, Some(_)) => Err(Failure::usage(format!(
                "--csv-header is for csv:FILE, {other} has no header"
            ))),
        }
    }

    /// Whether the number of its classes is known without its labels.
    pub(crate) fn knows_classes(&self) -> bool {
        matches!(self, Self::Digits | Self::Mnist | Self::FashionMnist)
    }

    /// What was said of a table's first line, for a checkpoint.
    pub(crate) fn header(&self) -> Option<&'static str> {
        match self {
            Self::Csv(_, CsvHeader::Present) => Some("yes"),
            Self::Csv(_, CsvHeader::Absent) => Some("no"),
            _ => None,
        }
    }

    /// What it is, without where its files are.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::Mnist => "mnist",
            Self::FashionMnist => "fashion-mnist",
            Self::Images | Self::ImagesAt(_) => "images",
            Self::Text(_) => "text:FILE",
            Self::Idx(_) => "idx:DIR",
            Self::Csv(..) => "csv:FILE",
            Self::Npz(_) => "npz:FILE",
        }
    }

    /// How often `train` goes through it unless it is told.
    pub(crate) fn default_epochs(&self) -> usize {
        match self {
            Self::Digits => 30,
            _ => 10,
        }
    }

    /// Reads it.
    pub(crate) fn read(&self, how: &Reading) -> Result<Parts, Failure> {
        self.refuse_flags(how)?;
        let data = match self {
            Self::Digits => Parts::Whole(readers::digits()?),
            Self::Mnist | Self::FashionMnist => {
                Parts::Given(self.read_mnist(how.data_dir.as_deref())?)
            }
            Self::Images | Self::ImagesAt(_) => {
                let folder = self.folder(how)?;
                Parts::Whole(readers::read_image_folder(folder, how.color)?)
            }
            Self::Text(_) => {
                return Err(Failure::usage(format!(
                    "{self}: lines of text have no labels, so they are for `predict`; use csv:FILE \
                     with the columns text and label"
                )));
            }
            Self::Idx(folder) => Parts::Given(readers::read_mnist_folder(folder, None)?),
            Self::Csv(path, _) if how.as_text => {
                Parts::Whole(readers::read_texts(path, &how.texts(true))?)
            }
            Self::Csv(path, header) => {
                Parts::Whole(readers::read_csv(path, &how.table(*header, true))?)
            }
            Self::Npz(path) => match readers::read_npz(path)? {
                (train, Some(test)) => Parts::Given(TrainTest { train, test }),
                (all, None) => Parts::Whole(all),
            },
        };
        let data = classes_of(data)?;
        self.refuse_kind(how, data.first())?;
        Ok(data)
    }

    /// Reads what a model is to answer on: without labels, which need not be there.
    pub(crate) fn read_unlabelled(&self, how: &Reading) -> Result<Examples, Failure> {
        self.refuse_flags(how)?;
        let data = match self {
            Self::Images | Self::ImagesAt(_) => readers::read_images(self.folder(how)?, how.color)?,
            Self::Text(path) => readers::read_text_lines(path)?,
            Self::Csv(path, _) if how.as_text => readers::read_texts(path, &how.texts(false))?,
            Self::Csv(path, header) => readers::read_csv(path, &how.table(*header, false))?,
            Self::Npz(path) => readers::read_npz_features(path)?,
            Self::Idx(path) if path.is_file() => {
                let images = readers::read_idx(path)?;
                let labels = Labels::Absent(images.rows());
                Examples::new(&self.to_string(), Features::Numbers(images), labels)?
            }
            // Labels that are there are read.
            Self::Digits => return self.read(how).map(|parts| parts.first().clone()),
            Self::Mnist | Self::FashionMnist | Self::Idx(_) => {
                let folder = match self {
                    Self::Idx(folder) => folder.clone(),
                    _ => self.mnist_folder(how.data_dir.as_deref()),
                };
                match self.read(how) {
                    Ok(parts) => return Ok(parts.first().clone()),
                    Err(error) => readers::read_mnist_images(folder).map_err(|_| error)?,
                }
            }
        };
        self.refuse_kind(how, &data)?;
        Ok(data)
    }

    /// Whether it is a folder of images, wherever that is said.
    pub(crate) fn is_images(&self) -> bool {
        matches!(self, Self::Images | Self::ImagesAt(_))
    }

    /// Refuses what is said of something else.
    fn refuse_flags(&self, how: &Reading) -> Result<(), Failure> {
        let in_folder = matches!(self, Self::Mnist | Self::FashionMnist | Self::Images);
        if how.data_dir.is_some() && !in_folder {
            return Err(Failure::usage(format!(
                "--data-dir is for mnist, fashion-mnist and images, {self} does not need it"
            )));
        }
        if matches!(self, Self::Csv(_, CsvHeader::Absent)) && how.as_text {
            return Err(Failure::usage(
                "the model `text` finds its columns by their names; --csv-header no is for \
                 tables of numbers",
            ));
        }
        Ok(())
    }

    fn refuse_kind(&self, how: &Reading, data: &Examples) -> Result<(), Failure> {
        match how.as_text && !data.is_text() {
            false => Ok(()),
            true => Err(Failure::usage(format!(
                "the model `text` needs texts, {self} has numbers; use csv:FILE with the columns \
                 text and label"
            ))),
        }
    }

    /// Where the images are.
    fn folder<'a>(&'a self, how: &'a Reading) -> Result<&'a Path, Failure> {
        match self {
            Self::ImagesAt(path) => Ok(path),
            _ => how.data_dir.as_deref().ok_or_else(|| {
                Failure::usage(
                    "--dataset images needs the folder of the images, one folder per class: \
                     --dataset images:DIR, or --data-dir DIR",
                )
            }),
        }
    }
}

/// How files are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    pub(crate) data_dir: Option<PathBuf>,
    /// A CSV file holds texts with labels.
    pub(crate) as_text: bool,
    pub(crate) delimiter: Option<char>,
    pub(crate) label_column: Option<String>,
    pub(crate) color: ImageColor,
    pub(crate) columns: CsvColumns,
    pub(crate) label_place: LabelPlace,
}

impl Reading {
    pub(crate) fn new(
        args: &DataArgs,
        dataset: &DatasetName,
        as_text: bool,
    ) -> Result<Self, Failure> {
        let csv = matches!(dataset, DatasetName::Csv(..));
        let for_other = [
            (
                "--csv-delimiter",
                args.csv_delimiter.is_some() && !csv,
                "csv:FILE",
            ),
            (
                "--label-column",
                args.label_column.is_some() && !csv,
                "csv:FILE",
            ),
            (
                "--color-mode",
                args.color_mode.is_some() && !dataset.is_images(),
                "images",
            ),
        ];
        if let Some((flag, _, kind)) = for_other.iter().find(|it| it.1) {
            return Err(Failure::usage(format!(
                "{flag} is for {kind}, not for {dataset}"
            )));
        }
        Ok(Self {
            data_dir: args.data_dir.clone(),
            as_text,
            delimiter: args.csv_delimiter,
            label_column: args.label_column.clone(),
            color: args
                .color_mode
                .map_or(ImageColor::AsStored, ImageColor::from),
            columns: CsvColumns::All,
            label_place: LabelPlace::default(),
        })
    }

    fn delimiter(&self) -> u8 {
        let byte = self.delimiter.and_then(|it| u8::try_from(it).ok());
        byte.unwrap_or(b',')
    }

    fn texts(&self, labelled: bool) -> TextOptions {
        let usual = TextOptions::default();
        TextOptions {
            delimiter: self.delimiter(),
            delimiter_is_sure: self.delimiter.is_some(),
            labelled,
            label: self.label_column.clone().unwrap_or(usual.label),
        }
    }

    fn table(&self, header: CsvHeader, labelled: bool) -> CsvOptions {
        let named = self.label_column.clone();
        CsvOptions {
            header,
            label: match labelled {
                true => named.map_or(LabelColumn::Detect, LabelColumn::Name),
                false => LabelColumn::Absent,
            },
            delimiter: self.delimiter(),
            delimiter_is_sure: self.delimiter.is_some(),
            columns: self.columns.clone(),
            label_place: self.label_place,
            ..CsvOptions::default()
        }
    }
}

/// Labels that are values as classes, where they say classes.
fn classes_of(data: Parts) -> Result<Parts, Failure> {
    let classes = |examples: Examples| {
        examples.with_labels_as_classes().map_err(|error| match error {
            ReadError::NotClasses { .. } => Failure::refused(format!(
                "{error}; this program trains classifiers, a program of your own has other losses"
            )),
            other => other.into(),
        })
    };
    Ok(match data {
        Parts::Whole(all) => Parts::Whole(classes(all)?),
        Parts::Given(both) => {
            let (train, test) = (classes(both.train)?, classes(both.test)?);
            let count = train.classes().max(test.classes()).unwrap_or(1);
            Parts::Given(TrainTest {
                train: train.with_classes(count)?,
                test: test.with_classes(count)?,
            })
        }
    })
}

impl DatasetName {
    /// `data_dir`, or the folder of the data set's name.
    fn mnist_folder(&self, data_dir: Option<&Path>) -> PathBuf {
        match data_dir {
            Some(folder) => folder.to_path_buf(),
            None => Path::new("data").join(self.to_string()),
        }
    }

    /// The four files in `data_dir`, or in the folder of the data set's name.
    fn read_mnist(&self, data_dir: Option<&Path>) -> Result<TrainTest, Failure> {
        let folder = self.mnist_folder(data_dir);
        if !folder.exists() {
            let names = ["train", "t10k"]
                .map(|split| format!("{split}-images-idx3-ubyte.gz, {split}-labels-idx1-ubyte.gz"));
            return Err(Failure::refused(format!(
                "{} does not exist; put {} there (.gz or not), or name their folder with \
                 --data-dir",
                folder.display(),
                names.join(", ")
            )));
        }
        Ok(readers::read_mnist_folder(folder, Some(MNIST_CLASSES))?)
    }
}

/// One replica's batch: `[n, values]` with the classes `[n]`, and how much each example counts.
pub(crate) type Batch = <Data as Dataset>::Batch;

/// What is trained on and measured.
pub(crate) type Data = Weighted<Classified>;

/// Examples as batches for a model, which gives them their shape.
#[derive(Debug, Clone)]
pub(crate) struct Classified {
    examples: Examples,
    values: usize,
}

impl Classified {
    /// These examples with weights.
    pub(crate) fn weighted(examples: Examples) -> Data {
        let values = examples.feature_shape().iter().product();
        Weighted::new(Self { examples, values })
    }
}

impl Dataset for Classified {
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn len(&self) -> usize {
        self.examples.len()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        let count = indices.len();
        let values = self.examples.features_f32(indices)?;
        let labels = match self.examples.is_labelled() {
            true => self.examples.labels_i64(indices)?,
            // Nothing looks at them.
            false => vec![0; count],
        };
        let values = TensorData::new(values, [count, self.values]);
        let labels = TensorData::new(labels, [count]);
        Ok((
            Tensor::from_data(values, device),
            Tensor::from_data(labels, device),
        ))
    }
}
