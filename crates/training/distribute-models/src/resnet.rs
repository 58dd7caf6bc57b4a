//! Residual networks for images.

use burn::config::Config;
use burn::module::{Initializer, Module};
use burn::nn::conv::Conv2dConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use distribute_core::{Error, ReplicaContext, Result, SyncBatchNorm, SyncBatchNormConfig};
use distribute_kernels::nn::{Conv2d, MaxPool2d};

/// How a [`ResNet`] begins.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Stem {
    /// A convolution of 7 x 7 with stride 2 and a max-pool of 3 x 3 with stride 2, for images of
    /// some hundred pixels: what follows sees a quarter of the rows.
    Large,
    /// A convolution of 3 x 3 with stride 2: half of the rows.
    Half,
    /// A convolution of 3 x 3: all rows.
    Small,
}

/// What a [`ResNet`] is made of.
#[derive(Config, Debug)]
pub struct ResNetConfig {
    /// The channels of an image: 1 for grey ones, 3 for colours.
    pub channels: usize,
    /// The number of classes.
    pub classes: usize,
    /// The channels of each stage. Each but the first halves the rows and columns.
    pub widths: Vec<usize>,
    /// The number of blocks of two convolutions in each stage.
    pub blocks: usize,
    /// How the network begins.
    pub stem: Stem,
    /// What of the old moving statistics stays in each step.
    #[config(default = 0.9)]
    pub momentum: f64,
}

impl ResNetConfig {
    /// ResNet-18: four stages of two blocks with 64 to 512 channels, 11 million parameters (He,
    /// Zhang, Ren and Sun, 2016, table 1; PyTorch: `torchvision.models.resnet18`).
    pub fn resnet18(channels: usize, classes: usize) -> Self {
        Self::new(channels, classes, vec![64, 128, 256, 512], 2, Stem::Large)
    }

    /// A narrow one for images of 28 x 28: three stages of one block with 32 to 128 channels on
    /// half of the rows, 0.3 million parameters.
    pub fn narrow(channels: usize, classes: usize) -> Self {
        Self::new(channels, classes, vec![32, 64, 128], 1, Stem::Half)
    }

    /// The same network with other channels per stage; `widths` has one entry per stage.
    #[must_use]
    pub fn with_widths(mut self, widths: Vec<usize>) -> Self {
        self.widths = widths;
        self
    }

    /// The network, with He's normal initial weights (`fan_out`) in the convolutions. The factor of
    /// the last normalization of a block begins as 0, so that the block adds nothing at first
    /// (Goyal et al., 2017; torchvision: `zero_init_residual`).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no channels, classes, stages or blocks, and the errors of
    /// [`SyncBatchNormConfig::init`].
    pub fn init(&self, device: &Device) -> Result<ResNet> {
        let sizes = [
            ("channels", self.channels),
            ("classes", self.classes),
            ("blocks", self.blocks),
            ("widths", self.widths.iter().copied().min().unwrap_or(0)),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(Error::invalid(format!(
                "ResNetConfig: {name} must be 1 or more, in {self}"
            )));
        }
        let first = self.widths[0];
        let (kernel, stride) = match self.stem {
            Stem::Large => (7, 2),
            Stem::Half => (3, 2),
            Stem::Small => (3, 1),
        };
        let pool = (self.stem == Stem::Large).then(|| {
            let config = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
            config.with_padding(around(3)).init().into()
        });
        let mut blocks = Vec::new();
        let mut channels = first;
        for (stage, width) in self.widths.iter().enumerate() {
            for block in 0..self.blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(self.block(channels, *width, stride, device)?);
                channels = *width;
            }
        }
        Ok(ResNet {
            stem: self.conv([self.channels, first], kernel, stride, device)?,
            pool,
            blocks,
            output: LinearConfig::new(channels, self.classes).init(device),
        })
    }

    fn block(&self, from: usize, to: usize, stride: usize, device: &Device) -> Result<Block> {
        let is_other = from != to || stride > 1;
        let shortcut = is_other.then(|| self.conv([from, to], 1, stride, device));
        let mut second = self.conv([to, to], 3, 1, device)?;
        second.norm.gamma = Some(Initializer::Zeros.init([to], device));
        Ok(Block {
            first: self.conv([from, to], 3, stride, device)?,
            second,
            shortcut: shortcut.transpose()?,
        })
    }

    fn conv(
        &self,
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
        device: &Device,
    ) -> Result<ConvNorm> {
        let initializer = Initializer::KaimingNormal {
            gain: 2.0_f64.sqrt(),
            fan_out_only: true,
        };
        let conv = Conv2dConfig::new(channels, [kernel; 2])
            .with_stride([stride; 2])
            .with_padding(around(kernel))
            .with_bias(false)
            .with_initializer(initializer);
        let norm = SyncBatchNormConfig::new(channels[1])
            .with_momentum(self.momentum)
            .with_epsilon(1e-5);
        Ok(ConvNorm {
            conv: conv.init(device).into(),
            norm: norm.init(device)?,
        })
    }
}

/// As many rows and columns around the image as a window of this size, which is odd, reaches over
/// its edge.
fn around(size: usize) -> PaddingConfig2d {
    let padding = size / 2;
    PaddingConfig2d::Explicit(padding, padding, padding, padding)
}

/// A residual network: a stem, blocks of two convolutions with a shortcut around them, the mean
/// over all pixels, and a dense layer (He, Zhang, Ren and Sun, *Deep Residual Learning for Image
/// Recognition*, 2016).
///
/// The batch normalizations are [`SyncBatchNorm`]: the network trains on any number of replicas as
/// it does on one, and in compiled steps. The convolutions come from `distribute-kernels`.
///
/// ```
/// use distribute_core::{Device, Tensor};
/// use distribute_models::ResNetConfig;
///
/// let device = Device::flex();
/// let model = ResNetConfig::resnet18(3, 10).with_widths(vec![4, 8]).init(&device)?;
/// let logits = model.forward_inference(Tensor::ones([2, 3, 32, 32], &device))?;
/// assert_eq!(logits.dims(), [2, 10]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct ResNet {
    stem: ConvNorm,
    pool: Option<MaxPool2d>,
    blocks: Vec<Block>,
    output: Linear,
}

impl ResNet {
    /// Images `[batch, channels, height, width]` to logits `[batch, classes]`, normalized with the
    /// statistics of the images of all replicas, which all must call this.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for images with another number of channels. Failures of other
    /// replicas are errors of the step, see [`SyncBatchNorm::forward`].
    pub fn forward(&self, ctx: &ReplicaContext, images: Tensor<4>) -> Result<Tensor<2>> {
        self.apply(Some(ctx), images)
    }

    /// [`forward`](Self::forward) with the moving statistics; also outside of steps.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for images with another number of channels.
    pub fn forward_inference(&self, images: Tensor<4>) -> Result<Tensor<2>> {
        self.apply(None, images)
    }

    fn apply(&self, ctx: Option<&ReplicaContext>, images: Tensor<4>) -> Result<Tensor<2>> {
        let (channels, dims) = (self.stem.conv.weight.dims()[1], images.dims());
        if dims[1] != channels || dims[2..].contains(&0) {
            return Err(Error::invalid(format!(
                "ResNet: the images must be [batch, {channels}, height, width], got {dims:?}"
            )));
        }
        let mut x = relu(self.stem.apply(ctx, images)?);
        if let Some(pool) = &self.pool {
            x = pool.forward(x);
        }
        for block in &self.blocks {
            x = block.apply(ctx, x)?;
        }
        let features = x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim::<2>(2);
        Ok(self.output.forward(features))
    }
}

/// Two convolutions, and a shortcut around them: the input itself, or where the shape changes what
/// a convolution of 1 x 1 makes of it.
#[derive(Module, Debug)]
struct Block {
    first: ConvNorm,
    second: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl Block {
    fn apply(&self, ctx: Option<&ReplicaContext>, x: Tensor<4>) -> Result<Tensor<4>> {
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.apply(ctx, x.clone())?,
            None => x.clone(),
        };
        let x = relu(self.first.apply(ctx, x)?);
        let x = self.second.apply(ctx, x)?;
        Ok(relu(x + around))
    }
}

/// A convolution without a bias, and the batch normalization that has one.
#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: SyncBatchNorm,
}

impl ConvNorm {
    fn apply(&self, ctx: Option<&ReplicaContext>, x: Tensor<4>) -> Result<Tensor<4>> {
        let x = self.conv.forward(x);
        match ctx {
            Some(_) => Ok(self.norm.forward(x)),
            None => self.norm.forward_inference(x),
        }
    }
}
