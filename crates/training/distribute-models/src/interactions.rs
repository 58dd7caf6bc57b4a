//! Users and what they like, made by a rule.

use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::{Error, Nest, Result};
use distribute_data::Dataset;

/// The directions of taste that a user and an item have.
const TASTES: u64 = 4;

/// A user who saw an item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interaction {
    /// The user.
    pub user: i64,
    /// The item.
    pub item: i64,
    /// The user's age, from -1 to 1.
    pub age: f32,
    /// The item's price, from -1 to 1.
    pub price: f32,
    /// Whether the user liked it.
    pub liked: bool,
}

/// Any number of [`Interaction`]s, made by a rule: the same ones everywhere, without a file.
///
/// All numbers are `h(seed, n) = top 24 bits of mix(n + 1 + seed * 2^32) / 2^24`, with the function
/// `mix` of SplitMix64 (Steele, Lea and Flood, 2014). Interaction `n` has the user `h(1, n) *
/// users` and the item `h(2, n) * items`, both rounded down. A user's age is `2 h(3, user) - 1`, an
/// item's price `2 h(4, item) - 1`; both have four tastes, `2 h(5 + t, user) - 1` and `2 h(9 + t,
/// item) - 1`. The user likes the item if the sum of the products of their tastes, plus age times
/// price, is above 0. Nothing is left to chance, so the loss can fall to zero.
#[derive(Debug, Clone)]
pub struct Interactions {
    users: u32,
    items: u32,
    begin: u64,
    count: usize,
}

impl Interactions {
    /// The first `count` interactions of `users` users with `items` items.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no users or no items.
    pub fn new(users: u32, items: u32, count: usize) -> Result<Self> {
        if users == 0 || items == 0 {
            return Err(Error::invalid(format!(
                "Interactions: {users} users and {items} items; there must be 1 or more of each"
            )));
        }
        Ok(Self {
            users,
            items,
            begin: 0,
            count,
        })
    }

    /// The `count` interactions after these, to test with.
    #[must_use]
    pub fn after(&self, count: usize) -> Self {
        let begin = self.begin + self.count as u64;
        Self {
            begin,
            count,
            ..self.clone()
        }
    }

    /// The `number`-th interaction, which there is however large it is.
    pub fn interaction(&self, number: u64) -> Interaction {
        let number = self.begin.wrapping_add(number);
        let below = |seed, below: u32| (hashed(seed, number) * f64::from(below)) as u64;
        let (user, item) = (below(1, self.users), below(2, self.items));
        let around = |seed, of| hashed(seed, of) * 2.0 - 1.0;
        let (age, price) = (around(3, user), around(4, item));
        let tastes = (0..TASTES).map(|taste| around(5 + taste, user) * around(9 + taste, item));
        let fit = tastes.sum::<f64>() + age * price;
        Interaction {
            user: user as i64,
            item: item as i64,
            age: age as f32,
            price: price as f32,
            liked: fit > 0.0,
        }
    }
}

/// A number from 0 to 1, without 1.
fn hashed(seed: u64, number: u64) -> f64 {
    let mut mixed = number.wrapping_add(1).wrapping_add(seed << 32);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 40) as f64 / f64::from(1 << 24)
}

/// Interactions as tensors.
#[derive(Debug, Clone, Nest)]
pub struct InteractionBatch {
    /// The users and their ages: `[n]` and `[n, 1]`.
    pub users: (Tensor<1, Int>, Tensor<2>),
    /// The items and their prices: `[n]` and `[n, 1]`.
    pub items: (Tensor<1, Int>, Tensor<2>),
    /// 1 where the user liked the item, else 0: `[n]`.
    pub liked: Tensor<1>,
}

impl InteractionBatch {
    /// These interactions on a device.
    pub fn of(interactions: &[Interaction], device: &Device) -> Self {
        let ids = |id: fn(&Interaction) -> i64| {
            let ids: Vec<i64> = interactions.iter().map(id).collect();
            Tensor::from_data(TensorData::new(ids, [interactions.len()]), device)
        };
        let numbers = |number: fn(&Interaction) -> f32| {
            let numbers: Vec<f32> = interactions.iter().map(number).collect();
            Tensor::<1>::from_data(TensorData::new(numbers, [interactions.len()]), device)
        };
        let column = |number| numbers(number).unsqueeze_dim::<2>(1);
        Self {
            users: (
                ids(|interaction| interaction.user),
                column(|interaction| interaction.age),
            ),
            items: (
                ids(|interaction| interaction.item),
                column(|interaction| interaction.price),
            ),
            liked: numbers(|interaction| f32::from(u8::from(interaction.liked))),
        }
    }
}

impl Dataset for Interactions {
    type Batch = InteractionBatch;

    fn len(&self) -> usize {
        self.count
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<InteractionBatch> {
        let interactions = indices.iter().map(|index| self.interaction(*index as u64));
        Ok(InteractionBatch::of(
            &interactions.collect::<Vec<_>>(),
            device,
        ))
    }
}
