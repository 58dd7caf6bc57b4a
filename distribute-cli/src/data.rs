//! What the data sets hold, and their batches.

use std::path::Path;

use burn::tensor::Int;
use distribute_core::{Device, Result, Tensor, TensorData};
use distribute_data::readers::{self, CsvHeader, CsvOptions, Examples, ImageColor, TrainTest};
use distribute_data::{Dataset, Weighted};

use crate::failure::Failure;
use crate::flags::{CsvHeaderName, DatasetName};
use crate::split::Parts;

/// Classes of MNIST and Fashion-MNIST.
const MNIST_CLASSES: usize = 10;

impl DatasetName {
    /// The model that is trained on it unless another one is named.
    pub(crate) fn default_model(&self) -> &'static str {
        match self {
            Self::Digits => "digits-cnn",
            Self::Mnist | Self::FashionMnist | Self::Images | Self::Idx(_) => "mnist-cnn",
            Self::Csv(..) | Self::Npz(_) => "mlp",
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
            Self::Images => "images",
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

    /// Reads it. `as_text` reads a CSV file as texts with labels.
    pub(crate) fn read(&self, data_dir: Option<&Path>, as_text: bool) -> Result<Parts, Failure> {
        let in_folder = matches!(self, Self::Mnist | Self::FashionMnist | Self::Images);
        if data_dir.is_some() && !in_folder {
            return Err(Failure::usage(format!(
                "--data-dir is for mnist, fashion-mnist and images, {self} does not need it"
            )));
        }
        let data = match self {
            Self::Digits => Parts::Whole(readers::digits()?),
            Self::Mnist | Self::FashionMnist => Parts::Given(self.read_mnist(data_dir)?),
            Self::Images => {
                let folder = data_dir.ok_or_else(|| {
                    Failure::usage(
                        "--dataset images needs --data-dir: a folder with one folder of PNG or \
                         JPEG images per class",
                    )
                })?;
                Parts::Whole(readers::read_image_folder(folder, ImageColor::AsStored)?)
            }
            Self::Idx(folder) => Parts::Given(readers::read_mnist_folder(folder, None)?),
            Self::Csv(_, CsvHeader::Absent) if as_text => {
                return Err(Failure::usage(
                    "the model `text` finds its columns by their names; --csv-header no is for \
                     tables of numbers",
                ));
            }
            Self::Csv(path, _) if as_text => Parts::Whole(readers::read_text_csv(path)?),
            Self::Csv(path, header) => {
                let options = CsvOptions {
                    header: *header,
                    ..CsvOptions::default()
                };
                Parts::Whole(readers::read_csv(path, &options)?)
            }
            Self::Npz(path) => match readers::read_npz(path)? {
                (train, Some(test)) => Parts::Given(TrainTest { train, test }),
                (all, None) => Parts::Whole(all),
            },
        };
        if data.first().classes().is_none() {
            return Err(Failure::refused(format!(
                "{self}: the labels are not classes; this program trains classifiers, use the \
                 library for other losses"
            )));
        }
        if as_text && !data.first().is_text() {
            return Err(Failure::usage(format!(
                "the model `text` needs texts, {self} has numbers; use csv:FILE with the columns \
                 text and label"
            )));
        }
        Ok(data)
    }
}

impl DatasetName {
    /// The four files in `data_dir`, or in the folder of the data set's name.
    fn read_mnist(&self, data_dir: Option<&Path>) -> Result<TrainTest, Failure> {
        let folder = match data_dir {
            Some(folder) => folder.to_path_buf(),
            None => Path::new("data").join(self.to_string()),
        };
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
        let labels = self.examples.labels_i64(indices)?;
        let values = TensorData::new(values, [count, self.values]);
        let labels = TensorData::new(labels, [count]);
        Ok((
            Tensor::from_data(values, device),
            Tensor::from_data(labels, device),
        ))
    }
}
