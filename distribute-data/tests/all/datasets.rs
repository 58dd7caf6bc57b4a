//! Datasets on top of the readers' arrays.

use std::error::Error as _;

use distribute_core::{
    Device, Error, MirroredStrategy, ReduceOp, Strategy, StrategyExt, Tensor, TensorData,
};
use distribute_data::{
    ArrayDataset, AverageLoss, Dataset, Digits, FashionMnist, ImageDataset, Mnist, StrategyDataExt,
    TabularDataset, TextDataset, ValueDataset, Vocabulary,
};
use distribute_readers::{Array, Examples, Features, Labels, ReadError, Values, parse_text_csv};

fn examples(shape: &[usize], values: Values) -> Examples {
    let array = Array::new(shape.to_vec(), values).unwrap();
    let labels = Labels::Classes((0..shape[0] as i64).collect());
    Examples::new("test", Features::Numbers(array), labels).unwrap()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn images_are_channels_first() {
    // Two images of 1 x 2 pixels with three channels.
    let rgb = Values::F32(vec![
        1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0,
    ]);
    let dataset = ImageDataset::new(examples(&[2, 1, 2, 3], rgb)).unwrap();
    assert_eq!((dataset.len(), dataset.image_shape()), (2, [3, 1, 2]));
    let (images, labels) = dataset.batch(&[1, 0], &Device::flex()).unwrap();
    assert_eq!(images.dims(), [2, 3, 1, 2]);
    let expected = [
        7.0, 10.0, 8.0, 11.0, 9.0, 12.0, 1.0, 4.0, 2.0, 5.0, 3.0, 6.0,
    ];
    assert_eq!(floats(images), expected);
    assert_eq!(labels.into_data().iter::<i64>().collect::<Vec<_>>(), [1, 0]);
    let (images, labels) = dataset.batch(&[], &Device::flex()).unwrap();
    assert_eq!((images.dims(), labels.dims()), ([0, 3, 1, 2], [0]));
}

#[test]
fn arrays_tables_and_values() {
    let values = || Values::F32((0..12).map(|x| x as f32).collect());
    let device = Device::flex();
    let cubes = ArrayDataset::<3>::new(examples(&[3, 2, 2], values())).unwrap();
    assert_eq!(cubes.batch(&[2], &device).unwrap().0.dims(), [1, 2, 2]);
    assert_eq!(cubes.batch(&[], &device).unwrap().0.dims(), [0, 2, 2]);
    let table = TabularDataset::new(examples(&[3, 2, 2], values())).unwrap();
    let (rows, _) = table.batch(&[1, 2], &device).unwrap();
    assert_eq!(rows.dims(), [2, 4]);
    assert_eq!(floats(rows), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);

    let targets =
        Labels::Numbers(Array::new(vec![3, 1], Values::F64(vec![0.5, 1.5, 2.5])).unwrap());
    let features = Features::Numbers(Array::new(vec![3, 4], values()).unwrap());
    let regression = Examples::new("regression", features, targets).unwrap();
    let dataset = ValueDataset::<2, 2>::new(regression.clone()).unwrap();
    let (x, y) = dataset.batch(&[2, 0], &device).unwrap();
    assert_eq!(
        (x.dims(), y.dims(), floats(y)),
        ([2, 4], [2, 1], vec![2.5, 0.5])
    );
    assert_eq!(dataset.batch(&[], &device).unwrap().1.dims(), [0, 1]);
    let refused = [
        ValueDataset::<2, 1>::new(regression.clone()).unwrap_err(),
        TabularDataset::new(regression.clone()).unwrap_err(),
        ImageDataset::new(regression).unwrap_err(),
        ArrayDataset::<4>::new(examples(&[3, 2, 2], values())).unwrap_err(),
        ImageDataset::new(examples(&[3, 4], values())).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    }
}

#[test]
fn texts_become_padded_ids() {
    let csv = "text,label\n\"The cat, the CAT!\",0\nA dog & the sun,1\n,0\n";
    let texts = parse_text_csv(csv.as_bytes(), "memory.csv").unwrap();
    let vocabulary = Vocabulary::build(&texts, 5).unwrap();
    assert_eq!(
        (vocabulary.words(), vocabulary.size()),
        (&["the", "cat", "a"].map(String::from)[..], 5)
    );
    let stored = Vocabulary::from_words(vocabulary.words().to_vec());
    assert_eq!(stored, vocabulary);
    let dataset = TextDataset::new(texts.clone(), vocabulary.clone(), 5).unwrap();
    let (ids, labels) = dataset.batch(&[0, 1, 2], &Device::flex()).unwrap();
    let expected = [2, 3, 2, 3, 0, 4, 1, 2, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(ids.dims(), [3, 5]);
    assert_eq!(ids.into_data().iter::<i64>().collect::<Vec<_>>(), expected);
    assert_eq!(
        labels.into_data().iter::<i64>().collect::<Vec<_>>(),
        [0, 1, 0]
    );
    assert_eq!(
        dataset.batch(&[], &Device::flex()).unwrap().0.dims(),
        [0, 5]
    );
    assert_eq!(vocabulary.encode("the the the", 2), [2, 2]);
    assert!(Vocabulary::build(&texts, 2).is_err());
    assert!(TextDataset::new(texts.clone(), vocabulary.clone(), 0).is_err());
    let numbers = examples(&[1, 2], Values::U8(vec![1, 2]));
    assert!(Vocabulary::build(&numbers, 9).is_err());
    assert!(TextDataset::new(numbers, vocabulary, 2).is_err());
    assert!(TabularDataset::new(texts).is_err());
}

#[test]
fn openers_give_images_and_typed_errors() {
    let digits = Digits::open().unwrap();
    let (train, test) = (digits.train().unwrap(), digits.test().unwrap());
    assert_eq!(
        (train.len(), test.len(), test.image_shape()),
        (1438, 359, [1, 8, 8])
    );
    let folder = tempfile::tempdir().unwrap();
    let errors = [
        Mnist::open(folder.path()).unwrap_err(),
        FashionMnist::open(folder.path()).unwrap_err(),
    ];
    for error in errors {
        assert!(error.source().is_none() && error.to_string().contains("train-images"));
        let Error::Input(source) = error else {
            panic!("{error:?}");
        };
        let source = source.downcast_ref::<ReadError>();
        assert!(matches!(source, Some(ReadError::Missing { .. })));
    }
    let error = train.batch(&[1438], &Device::flex()).unwrap_err();
    assert!(matches!(error, Error::Input(_)), "{error:?}");
}

/// Under MNIST's own names, the four files in a folder.
#[test]
fn mnist_is_read_from_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (split, count) in [("train", 3_u8), ("t10k", 2)] {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28];
        images.resize(16 + usize::from(count) * 784, 255);
        let labels: Vec<u8> = [0, 0, 8, 1, 0, 0, 0, count]
            .into_iter()
            .chain(0..count)
            .collect();
        let name = |kind| folder.path().join(format!("{split}-{kind}-ubyte"));
        std::fs::write(name("images-idx3"), images).unwrap();
        std::fs::write(name("labels-idx1"), labels).unwrap();
    }
    let fashion_mnist = FashionMnist::open(folder.path()).unwrap();
    assert_eq!(fashion_mnist.train().unwrap().len(), 3);
    let (images, labels) = fashion_mnist
        .test()
        .unwrap()
        .batch(&[1], &Device::flex())
        .unwrap();
    assert_eq!(images.dims(), [1, 1, 28, 28]);
    assert!(floats(images).iter().all(|&pixel| pixel == 1.0));
    assert_eq!(labels.into_data().iter::<i64>().collect::<Vec<_>>(), [1]);
    assert_eq!(Mnist::open(folder.path()).unwrap().test().unwrap().len(), 2);
    assert_eq!(FashionMnist::CLASS_NAMES.len(), 10);
}

/// The empty batches that fill up a step of one's own pipeline can be computed with.
#[test]
fn padded_batches_go_through_a_step() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let device = strategy.replicas()[0].device.clone();
    let distributed = strategy.distribute_datasets_from_function(|context| {
        let size = context.per_replica_batch_size(4)?;
        let device = device.clone();
        Ok((0..3).map(move |_| {
            let ones = TensorData::new(vec![1.0_f32; size * 3], [size, 3]);
            Ok((Tensor::<2>::from_data(ones, &device), size))
        }))
    });
    let mut sums = Vec::new();
    for step in distributed.epoch().unwrap() {
        let losses = strategy.run(step.unwrap(), |ctx, (rows, size)| {
            assert_eq!(rows.dims(), [size, 3]);
            let weights = Tensor::<2>::ones([3, 1], ctx.device()).require_grad();
            let per_example = rows.matmul(weights.clone()).squeeze_dim::<1>(1);
            let loss = AverageLoss::new()
                .global_batch_size(4)
                .of(ctx, per_example)?;
            let gradients = weights.grad(&loss.backward());
            gradients.ok_or_else(|| Error::invalid("no gradient"))
        });
        let sum = strategy.reduce(ReduceOp::Sum, losses.unwrap()).unwrap();
        sums.push(floats(sum));
    }
    assert_eq!(sums, [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]]);
}
