//! Batches that were trained on and that burn's metrics have not seen yet.

use std::collections::BTreeMap;

use burn::data::dataloader::Progress;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::{Device, TensorData};
use burn_train::TrainingItem;
use distribute_core::{Error, Result};

use crate::outputs::Codec;

/// A batch by its number in the epoch, and how many tensors its output is made of.
pub(crate) type Label = (usize, usize);

/// The batches since the workers last met.
pub(crate) struct Unseen<O> {
    /// On the chief: the batches of all workers.
    batches: BTreeMap<usize, Batch<O>>,
    /// On the others: the outputs of their own batches.
    labels: Vec<Label>,
    tensors: Vec<TensorData>,
}

struct Batch<O> {
    progress: Progress,
    rate: ModuleLearningRate,
    output: Option<O>,
}

impl<O> Default for Unseen<O> {
    fn default() -> Self {
        Self {
            batches: BTreeMap::new(),
            labels: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl<O: 'static> Unseen<O> {
    /// On the chief, a batch of any worker.
    pub(crate) fn expect(&mut self, number: usize, progress: Progress, rate: ModuleLearningRate) {
        let batch = Batch {
            progress,
            rate,
            output: None,
        };
        self.batches.insert(number, batch);
    }

    /// On the chief, what a batch has given.
    pub(crate) fn put(&mut self, number: usize, output: O) {
        if let Some(batch) = self.batches.get_mut(&number) {
            batch.output = Some(output);
        }
    }

    /// On another worker, what one of its own batches has given.
    pub(crate) fn pack(&mut self, number: usize, output: O, codec: &Codec) -> Result<()> {
        let tensors = codec.pack(output)?;
        self.labels.push((number, tensors.len()));
        self.tensors.extend(tensors);
        Ok(())
    }

    /// What is to be sent to the chief.
    pub(crate) fn take_packed(&mut self) -> (Vec<Label>, Vec<TensorData>) {
        let labels = std::mem::take(&mut self.labels);
        (labels, std::mem::take(&mut self.tensors))
    }

    /// What another worker has sent.
    pub(crate) fn unpack(
        &mut self,
        labels: Vec<Label>,
        tensors: Vec<TensorData>,
        (codec, device): (&Codec, &Device),
    ) -> Result<()> {
        let mut tensors = tensors.into_iter();
        for (number, count) in labels {
            let own = tensors.by_ref().take(count).collect();
            self.put(number, codec.unpack(own, device)?);
        }
        Ok(())
    }

    /// All batches in the order of the loader, for the metrics.
    ///
    /// # Errors
    /// If a worker has not sent what one of its batches gave.
    pub(crate) fn take_items(&mut self) -> Result<Vec<TrainingItem<O>>> {
        let batches = std::mem::take(&mut self.batches).into_iter();
        let items = batches.map(|(number, batch)| {
            let Batch {
                progress,
                rate,
                output,
            } = batch;
            let output = output.ok_or_else(|| {
                Error::invalid(format!("no worker has sent the output of batch {number}"))
            })?;
            Ok(TrainingItem::new(
                output,
                progress,
                Some(number + 1),
                Some(rate),
            ))
        });
        items.collect()
    }
}
