//! The content of the datasets, and their batches.

use std::path::{Path, PathBuf};

use distribute_readers as readers;
use distribute_readers::{
    CsvColumns, CsvHeader, CsvLabels, CsvOptions, Examples, Features, ImageColor, LabelColumn,
    LabelPlace, Labels, TextOptions, TrainTest,
};

use crate::dataset_name::DatasetName;
use crate::error::TaskError;
use crate::names::TargetsName;
use crate::reading_options::ReadingOptions;
use crate::several::{Named, NamedData};
use crate::split::Parts;
use crate::targets;

/// Classes of MNIST and Fashion-MNIST.
const MNIST_CLASSES: usize = 10;

impl DatasetName {
    /// The default model for this dataset.
    pub fn default_model(&self) -> &'static str {
        match self {
            Self::Digits => "digits-cnn",
            Self::Mnist | Self::FashionMnist | Self::Images | Self::ImagesAt(_) | Self::Idx(_) => {
                "mnist-cnn"
            }
            Self::Csv(..) | Self::Npz(_) => "mlp",
            Self::Text(_) => "text",
        }
    }

    /// The same dataset with what is known about a table's first line.
    ///
    /// # Errors
    /// If this is not a table.
    pub fn with_header(self, header: Option<CsvHeader>) -> Result<Self, TaskError> {
        match (self, header) {
            (data, None) => Ok(data),
            (Self::Csv(path, _), Some(header)) => Ok(Self::Csv(path, header)),
            (other, Some(_)) => Err(TaskError::NoHeader {
                dataset: other.to_string(),
            }),
        }
    }

    /// Whether the number of its classes is known without its labels.
    pub fn knows_classes(&self) -> bool {
        matches!(self, Self::Digits | Self::Mnist | Self::FashionMnist)
    }

    /// What is known about a table's first line, for a checkpoint.
    pub fn header(&self) -> Option<&'static str> {
        match self {
            Self::Csv(_, CsvHeader::Present) => Some("yes"),
            Self::Csv(_, CsvHeader::Absent) => Some("no"),
            _ => None,
        }
    }

    /// The kind of dataset, without its path.
    pub fn kind(&self) -> &'static str {
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

    /// The default number of epochs.
    pub fn default_epochs(&self) -> usize {
        match self {
            Self::Digits => 30,
            _ => 10,
        }
    }

    /// Reads the dataset, with labels of the kind that `how` says; classes if it says none.
    pub fn read(&self, how: &Reading) -> Result<Parts, TaskError> {
        let data = targets::known(self.read_raw(how)?, how.targets)?;
        let is_named = !how.class_names.is_empty() && !data.first().class_names().is_empty();
        if !is_named || self.is_images() {
            return Ok(data);
        }
        Ok(match data {
            Parts::Whole(all) => Parts::Whole(all.with_class_names(&how.class_names)?),
            Parts::Separate(TrainTest { train, test }) => Parts::Separate(TrainTest {
                train: train.with_class_names(&how.class_names)?,
                test: test.with_class_names(&how.class_names)?,
            }),
        })
    }

    /// Reads the dataset, with labels as the files have them.
    pub(crate) fn read_raw(&self, how: &Reading) -> Result<Parts, TaskError> {
        self.refuse_options(how)?;
        if let Some(named) = &how.named {
            return Ok(self.read_named(named, how, true)?.parts);
        }
        let data = match self {
            Self::Digits => Parts::Whole(readers::digits()?),
            Self::Mnist | Self::FashionMnist => {
                Parts::Separate(self.read_mnist(how.data_dir.as_deref())?)
            }
            Self::Images | Self::ImagesAt(_) => {
                let folder = self.folder(how)?;
                Parts::Whole(readers::read_image_folder(folder, how.color)?)
            }
            Self::Text(_) => {
                return Err(TaskError::TextLines {
                    dataset: self.to_string(),
                });
            }
            Self::Idx(folder) => Parts::Separate(readers::read_mnist_folder(folder, None)?),
            Self::Csv(path, _) if how.as_text => {
                Parts::Whole(readers::read_texts(path, &how.texts(true))?)
            }
            Self::Csv(path, header) => {
                Parts::Whole(readers::read_csv(path, &how.table(*header, true))?)
            }
            Self::Npz(path) => match readers::read_npz(path)? {
                (train, Some(test)) => Parts::Separate(TrainTest { train, test }),
                (all, None) => Parts::Whole(all),
            },
        };
        self.refuse_kind(how, data.first())?;
        Ok(data)
    }

    /// Reads examples for predictions; labels may be missing.
    pub fn read_unlabelled(&self, how: &Reading) -> Result<Examples, TaskError> {
        self.refuse_options(how)?;
        if let Some(named) = &how.named {
            return Ok(self.read_named(named, how, false)?.into_first());
        }
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
            // Labels are read if they exist.
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

    /// Reads the data of the inputs and outputs of a model with several.
    pub(crate) fn read_named(
        &self,
        named: &Named,
        how: &Reading,
        is_labelled: bool,
    ) -> Result<NamedData, TaskError> {
        let header = match self {
            Self::Csv(_, header) => *header,
            _ => CsvHeader::Detect,
        };
        named.read(self, &how.table(header, is_labelled), is_labelled)
    }

    /// Whether it is a folder of images, wherever that is said.
    pub fn is_images(&self) -> bool {
        matches!(self, Self::Images | Self::ImagesAt(_))
    }

    /// Refuses what is said of something else.
    fn refuse_options(&self, how: &Reading) -> Result<(), TaskError> {
        let in_folder = matches!(self, Self::Mnist | Self::FashionMnist | Self::Images);
        if how.data_dir.is_some() && !in_folder {
            return Err(TaskError::DataDirectory {
                dataset: self.to_string(),
            });
        }
        if matches!(self, Self::Csv(_, CsvHeader::Absent)) && how.as_text {
            return Err(TaskError::TextWithoutHeader);
        }
        Ok(())
    }

    fn refuse_kind(&self, how: &Reading, data: &Examples) -> Result<(), TaskError> {
        if how.as_text && !data.is_text() {
            Err(TaskError::NotTexts {
                dataset: self.to_string(),
            })
        } else {
            Ok(())
        }
    }

    /// Where the images are.
    fn folder<'a>(&'a self, how: &'a Reading) -> Result<&'a Path, TaskError> {
        match self {
            Self::ImagesAt(path) => Ok(path),
            _ => how.data_dir.as_deref().ok_or(TaskError::NoImageFolder),
        }
    }
}

/// How files are read.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    pub(crate) data_dir: Option<PathBuf>,
    /// A CSV file holds texts with labels.
    pub(crate) as_text: bool,
    pub(crate) delimiter: Option<char>,
    pub(crate) label_column: Option<String>,
    pub(crate) color: ImageColor,
    pub(crate) columns: CsvColumns,
    pub(crate) label_place: LabelPlace,
    pub(crate) weights: Option<String>,
    /// What the labels are taken for.
    pub(crate) targets: TargetsName,
    /// The classes of the model by their names.
    pub(crate) class_names: Vec<String>,
    /// The inputs and outputs of a model with several, by which its data is found.
    pub(crate) named: Option<Named>,
}

impl Reading {
    /// # Errors
    /// [`TaskError::OtherKind`] for an option that is of no use to the data set.
    pub(crate) fn new(
        options: &ReadingOptions,
        dataset: &DatasetName,
        as_text: bool,
    ) -> Result<Self, TaskError> {
        let csv = matches!(dataset, DatasetName::Csv(..));
        let (delimiter, label) = (&options.csv_delimiter, &options.label_column);
        let for_other = [
            ("csv_delimiter", delimiter.is_some() && !csv, "csv:FILE"),
            ("label_column", label.is_some() && !csv, "csv:FILE"),
            (
                "sample_weight_column",
                options.sample_weight_column.is_some() && (!csv || as_text),
                "csv:FILE with numbers",
            ),
            (
                "color_mode",
                options.color_mode.is_some() && !dataset.is_images(),
                "images",
            ),
        ];
        if let Some((option, _, kind)) = for_other.into_iter().find(|it| it.1) {
            return Err(TaskError::OtherKind {
                option,
                kind,
                dataset: dataset.to_string(),
            });
        }
        Ok(Self {
            data_dir: options.data_dir.clone(),
            as_text,
            delimiter: options.csv_delimiter,
            label_column: options.label_column.clone(),
            color: options.color_mode.unwrap_or_default(),
            columns: CsvColumns::All,
            label_place: LabelPlace::default(),
            weights: options.sample_weight_column.clone(),
            targets: TargetsName::Auto,
            class_names: Vec::new(),
            named: None,
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
            labels: CsvLabels::Detect,
        }
    }

    fn table(&self, header: CsvHeader, labelled: bool) -> CsvOptions {
        let named = self.label_column.clone();
        CsvOptions {
            header,
            label: if labelled {
                named.map_or(LabelColumn::Detect, LabelColumn::Name)
            } else {
                LabelColumn::Absent
            },
            delimiter: self.delimiter(),
            delimiter_is_sure: self.delimiter.is_some(),
            columns: self.columns.clone(),
            label_place: self.label_place,
            labels: CsvLabels::Detect,
            weights: self.weights.clone(),
        }
    }
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
    fn read_mnist(&self, data_dir: Option<&Path>) -> Result<TrainTest, TaskError> {
        let folder = self.mnist_folder(data_dir);
        if !folder.exists() {
            let names = ["train", "t10k"]
                .map(|split| format!("{split}-images-idx3-ubyte.gz, {split}-labels-idx1-ubyte.gz"));
            return Err(TaskError::NoFolder {
                folder,
                files: names.join(", "),
            });
        }
        Ok(readers::read_mnist_folder(folder, Some(MNIST_CLASSES))?)
    }
}
