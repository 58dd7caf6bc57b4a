//! A recommender of two towers.

use burn::config::Config;
use burn::module::{Initializer, Module};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use distribute_core::{Error, Result};

/// What [`TwoTowers`] are made of.
#[derive(Config, Debug)]
pub struct TwoTowersConfig {
    /// The numbers that are known of a user.
    pub user_features: usize,
    /// The numbers that are known of an item.
    pub item_features: usize,
    /// The elements of a row of an embedding table.
    #[config(default = 16)]
    pub width: usize,
    /// The features between the two layers of a tower.
    #[config(default = 64)]
    pub hidden: usize,
    /// The number of elements of a tower's output.
    #[config(default = 16)]
    pub output: usize,
}

impl TwoTowersConfig {
    /// The towers, with burn's initial weights.
    pub fn init(&self, device: &Device) -> TwoTowers {
        let tower = |features| Tower {
            hidden: LinearConfig::new(self.width + features, self.hidden).init(device),
            output: LinearConfig::new(self.hidden, self.output).init(device),
        };
        TwoTowers {
            user: tower(self.user_features),
            item: tower(self.item_features),
        }
    }
}

/// The part of a recommender behind its embedding tables: a tower for users and one for items. The
/// product of what they give says how well the two fit (Covington, Adams and Sargin, *Deep Neural
/// Networks for YouTube Recommendations*, 2016; Yi et al., *Sampling-Bias-Corrected Neural
/// Modeling for Large Corpus Item Recommendations*, 2019).
///
/// The rows come from wherever the tables are: from parameter servers by
/// `distribute_ps::WorkerContext::lookup`, or from a [`Recommender`], which has both.
#[derive(Module, Debug)]
pub struct TwoTowers {
    /// The tower of users.
    pub user: Tower,
    /// The tower of items.
    pub item: Tower,
}

impl TwoTowers {
    /// For each pair of a user and an item the logit `[n]` of fitting, from the rows `[n, width]`
    /// of their tables and the features `[n, features]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for rows and features of other shapes.
    pub fn forward(
        &self,
        user: (Tensor<2>, Tensor<2>),
        item: (Tensor<2>, Tensor<2>),
    ) -> Result<Tensor<1>> {
        let (users, items) = (user.0.dims()[0], item.0.dims()[0]);
        if users != items {
            return Err(Error::invalid(format!(
                "TwoTowers: {users} users and {items} items are no pairs"
            )));
        }
        let user = self.user.forward(user.0, user.1)?;
        let item = self.item.forward(item.0, item.1)?;
        Ok((user * item).sum_dim(1).squeeze_dim(1))
    }
}

/// Two dense layers over a row and features.
#[derive(Module, Debug)]
pub struct Tower {
    hidden: Linear,
    output: Linear,
}

impl Tower {
    /// A row `[n, width]` and features `[n, features]` to what is compared, `[n, output]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for other shapes.
    pub fn forward(&self, rows: Tensor<2>, features: Tensor<2>) -> Result<Tensor<2>> {
        let (rows_are, features_are) = (rows.dims(), features.dims());
        let wanted = self.hidden.weight.dims()[0];
        if rows_are[0] != features_are[0] || rows_are[1] + features_are[1] != wanted {
            return Err(Error::invalid(format!(
                "Tower: rows of shape {rows_are:?} and features of shape {features_are:?}; both \
                 have one line per example, and {wanted} columns together"
            )));
        }
        let input = Tensor::cat(vec![rows, features], 1);
        Ok(self.output.forward(relu(self.hidden.forward(input))))
    }
}

/// What a [`Recommender`] is made of.
#[derive(Config, Debug)]
pub struct RecommenderConfig {
    /// The number of users.
    pub users: usize,
    /// The number of items.
    pub items: usize,
    /// The layers after the tables.
    pub towers: TwoTowersConfig,
}

impl RecommenderConfig {
    /// The recommender; the rows are normal with deviation 0.1.
    pub fn init(&self, device: &Device) -> Recommender {
        let table = |rows| {
            let normal = Initializer::Normal {
                mean: 0.0,
                std: 0.1,
            };
            let config = EmbeddingConfig::new(rows, self.towers.width);
            config.with_initializer(normal).init(device)
        };
        Recommender {
            users: table(self.users),
            items: table(self.items),
            towers: self.towers.init(device),
        }
    }
}

/// [`TwoTowers`] with the embedding tables in the model, a copy on each replica.
#[derive(Module, Debug)]
pub struct Recommender {
    users: Embedding,
    items: Embedding,
    towers: TwoTowers,
}

impl Recommender {
    /// For each pair of a user and an item, as ids `[n]` and features `[n, features]`, the logit
    /// `[n]` of fitting.
    ///
    /// # Errors
    /// The errors of [`TwoTowers::forward`].
    ///
    /// # Panics
    /// For an id that is not in the table; inside a step the strategy reports it as an error.
    pub fn forward(
        &self,
        user: (Tensor<1, Int>, Tensor<2>),
        item: (Tensor<1, Int>, Tensor<2>),
    ) -> Result<Tensor<1>> {
        let rows = |table: &Embedding, ids: Tensor<1, Int>| {
            let rows = table.forward(ids.unsqueeze_dim::<2>(1));
            rows.squeeze_dim::<2>(1)
        };
        let users = rows(&self.users, user.0);
        let items = rows(&self.items, item.0);
        self.towers.forward((users, user.1), (items, item.1))
    }
}
