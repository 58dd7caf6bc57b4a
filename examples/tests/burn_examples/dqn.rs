//! burn's `dqn-agent`: an agent that learns from a memory of what it did, with a target network
//! that follows its policy.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Int;
use distribute::prelude::*;
use distribute::{BurnOptimizer, Replicate};

use crate::harness::*;

const ACTIONS: usize = 2;
const DISCOUNT: f64 = 0.9;
const TAU: f64 = 0.05;

#[derive(Module, Debug)]
struct Network {
    hidden: Linear,
    output: Linear,
    activation: Relu,
}

impl Network {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(2, 24).init(device),
            output: LinearConfig::new(24, ACTIONS).init(device),
            activation: Relu::new(),
        }
    }

    fn forward(&self, states: Tensor<2>) -> Tensor<2> {
        let hidden = self.activation.forward(self.hidden.forward(states));
        self.output.forward(hidden)
    }

    /// A part of the way to another network.
    fn toward(self, other: &Self) -> Self {
        let toward = |own: Linear, other: &Linear| Linear {
            weight: own.weight.map(|own| follow(own, other.weight.val())),
            bias: own.bias.zip(other.bias.as_ref()).map(|(own, other)| {
                let other = other.val();
                own.map(|own| follow(own, other))
            }),
        };
        Self {
            hidden: toward(self.hidden, &other.hidden),
            output: toward(self.output, &other.output),
            activation: self.activation,
        }
    }
}

fn follow<const D: usize>(own: Tensor<D>, other: Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(own.inner() * (1.0 - TAU) + other.inner() * TAU)
}

/// A cart on a track: it is rewarded for being near the middle, and starts anew where it leaves.
#[derive(Debug, Clone, Copy)]
struct Cart {
    place: f32,
    speed: f32,
}

/// What happened: state, action, reward, next state, and 0 where the episode ended.
#[derive(Debug, Clone)]
struct Transition {
    state: Vec<f32>,
    action: i64,
    reward: f32,
    next: Vec<f32>,
    goes_on: f32,
}

impl Cart {
    const START: Self = Self {
        place: 0.5,
        speed: 0.0,
    };

    fn state(&self) -> Vec<f32> {
        vec![self.place, self.speed]
    }

    fn step(&mut self, action: usize) -> Transition {
        let state = self.state();
        self.speed += if action == 0 { -0.1 } else { 0.1 };
        self.place += self.speed;
        let goes_on = self.place.abs() <= 1.0;
        let transition = Transition {
            state,
            action: action as i64,
            reward: 1.0 - self.place * self.place,
            next: self.state(),
            goes_on: if goes_on { 1.0 } else { 0.0 },
        };
        if !goes_on {
            *self = Self::START;
        }
        transition
    }
}

/// What the agent remembers, and what it chooses by chance.
struct Memory {
    cart: Cart,
    transitions: Vec<Transition>,
    numbers: Numbers,
}

impl Memory {
    fn new(seed: u64) -> Self {
        Self {
            cart: Cart::START,
            transitions: Vec::new(),
            numbers: Numbers(seed),
        }
    }

    /// Some steps of the agent, a third of them by chance, then some of all of them.
    fn play(&mut self, policy: &Network) -> Vec<Transition> {
        let policy = policy.valid();
        for _ in 0..8 {
            let action = match self.numbers.below(3) {
                0 => self.numbers.below(ACTIONS),
                _ => {
                    let values = policy.forward(rows(&[self.cart.state()], 2, &Device::flex()));
                    values.argmax(1).into_scalar::<i64>() as usize
                }
            };
            self.transitions.push(self.cart.step(action));
        }
        let count = self.transitions.len();
        let sample = (0..BATCH).map(|_| self.numbers.below(count));
        sample
            .map(|index| self.transitions[index].clone())
            .collect()
    }
}

#[derive(Nest, Clone, Debug)]
struct Batch {
    states: Tensor<2>,
    actions: Tensor<2, Int>,
    rewards: Tensor<2>,
    next: Tensor<2>,
    goes_on: Tensor<2>,
}

fn batch(of: &[Transition], device: &Device) -> Batch {
    let column = |number: fn(&Transition) -> f32| {
        let column: Vec<Vec<f32>> = of.iter().map(|it| vec![number(it)]).collect();
        rows(&column, 1, device)
    };
    let states = |state: fn(&Transition) -> &Vec<f32>| {
        let states: Vec<Vec<f32>> = of.iter().map(|it| state(it).clone()).collect();
        rows(&states, 2, device)
    };
    let actions = of.iter().map(|it| it.action).collect();
    Batch {
        states: states(|it| &it.state),
        actions: integers(actions, device).reshape([-1, 1]),
        rewards: column(|it| it.reward),
        next: states(|it| &it.next),
        goes_on: column(|it| it.goes_on),
    }
}

/// The parts of a batch that the program itself has made, as `distribute_dataset` splits one.
fn parts(strategy: &dyn Strategy, sample: &[Transition]) -> PerReplica<Batch> {
    let part = sample.len().div_ceil(strategy.num_replicas_in_sync());
    let of_replica = |replica: &distribute::Replica| {
        let [begin, end] = [0, 1].map(|more| (replica.id + more) * part);
        let end = end.min(sample.len());
        batch(&sample[begin.min(end)..end], &replica.device)
    };
    let parts = strategy.replicas().iter().map(of_replica).collect();
    PerReplica::new(parts).of_global_batch(sample.len())
}

/// The policy that learns, and the network that its targets are computed with.
#[derive(Replicate, Clone)]
struct Agent {
    policy: TrainState<Network>,
    target: Network,
}

impl Agent {
    fn new(policy: Network, device: &Device) -> Self {
        let optimizer = BurnOptimizer::new(AdamConfig::new(), 1e-2);
        Self {
            target: policy.clone().fork(device),
            policy: TrainState::new(policy, optimizer),
        }
    }
}

fn burn_loop(policy: Network, memory: &mut Memory) -> Result<Vec<f32>> {
    let device = Device::flex().autodiff();
    let (mut policy, mut target) = (policy.clone(), policy.fork(&device));
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _step in 0..STEPS {
        let batch = batch(&memory.play(&policy), &device);
        let values = policy.forward(batch.states).gather(1, batch.actions);
        let next = target.forward(batch.next).max_dim(1).detach();
        let wanted = next * batch.goes_on * DISCOUNT + batch.rewards;
        let loss = MseLoss::new().forward(values, wanted, Reduction::Mean);
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &policy);
        policy = optimizer.step(1e-2, policy, gradients);
        target = target.toward(&policy);
    }
    Ok(losses)
}

fn our_loop(strategy: &dyn Strategy, policy: Network, memory: &mut Memory) -> Result<Vec<f32>> {
    let mut agent = strategy.scope(|device| Agent::new(policy, device))?;
    let mut losses = Vec::new();
    for _step in 0..STEPS {
        let batch = parts(strategy, &memory.play(&agent.primary()?.policy.model));
        let shares = strategy.run((&mut agent, batch), |ctx, (agent, batch)| {
            let Agent { policy, target } = agent;
            let values = policy.model.forward(batch.states).gather(1, batch.actions);
            let next = target.forward(batch.next).max_dim(1).detach();
            let wanted = next * batch.goes_on * DISCOUNT + batch.rewards;
            let loss = MseLoss::new().forward(values, wanted, Reduction::Mean);
            let loss = ctx.mean_loss(loss)?;
            policy.minimize(ctx, &loss)?;
            *target = target.clone().toward(&policy.model);
            Ok(loss)
        })?;
        losses.push(strategy.reduce(ReduceOp::Sum, shares)?.into_scalar::<f32>());
    }
    Ok(losses)
}

#[test]
fn dqn_has_the_losses_of_burn() {
    for seed in [41, 42] {
        let wanted = burn_loop(model(seed, Network::new), &mut Memory::new(seed)).unwrap();
        falls(&wanted);
        has_losses_of_burn(&wanted, move |strategy| {
            our_loop(strategy, model(seed, Network::new), &mut Memory::new(seed))
        });
    }
}
