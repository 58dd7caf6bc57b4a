//! Well-known image sets by name.

use std::path::Path;

use distribute_core::Result;

use crate::ImageDataset;
use distribute_readers::{TrainTest, digits_split, read_mnist_folder};

macro_rules! image_set {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name {
            examples: TrainTest,
        }

        impl $name {
            /// The images to learn from. The data is shared, not copied.
            ///
            /// # Errors
            /// If the files hold something else than images.
            pub fn train(&self) -> Result<ImageDataset> {
                ImageDataset::new(self.examples.train.clone())
            }

            /// The images to judge the result with. The data is shared, not copied.
            ///
            /// # Errors
            /// If the files hold something else than images.
            pub fn test(&self) -> Result<ImageDataset> {
                ImageDataset::new(self.examples.test.clone())
            }
        }
    };
}

image_set!(
    /// 28 x 28 grey images of handwritten digits: 60,000 to learn from, 10,000 to test with
    /// (LeCun, Cortes and Burges, 1998).
    Mnist
);

image_set!(
    /// 28 x 28 grey images of ten kinds of clothing: 60,000 to learn from, 10,000 to test with
    /// (Xiao, Rasul and Vollgraf, 2017).
    FashionMnist
);

image_set!(
    /// 8 x 8 grey images of handwritten digits, built into the library: 1,438 to learn from, 359
    /// to test with. See [`readers::digits`](distribute_readers::digits()) for their source.
    Digits
);

impl Mnist {
    /// Reads a folder with the four IDX files, compressed or not.
    ///
    /// # Errors
    /// A [`ReadError`](distribute_readers::ReadError) inside `Error::Input`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let examples = read_mnist_folder(folder, Some(10))?;
        Ok(Self { examples })
    }
}

impl FashionMnist {
    /// The names of the classes, in the order of their labels.
    pub const CLASS_NAMES: [&'static str; 10] = [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ];

    /// Reads a folder with the four IDX files, compressed or not.
    ///
    /// # Errors
    /// A [`ReadError`](distribute_readers::ReadError) inside `Error::Input`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let examples = read_mnist_folder(folder, Some(10))?;
        Ok(Self { examples })
    }
}

impl Digits {
    /// The embedded images with their fixed split.
    ///
    /// # Errors
    /// None with the embedded bytes intact.
    pub fn open() -> Result<Self> {
        let examples = digits_split()?;
        Ok(Self { examples })
    }
}
