fn main() {
    let s = conformance::Selection {
        strategies: std::env::args().skip(1).collect(),
        families: vec![if std::env::var_os("R").is_some() {
            conformance::FamilyName::Reduce
        } else {
            conformance::FamilyName::Training
        }],
        ..Default::default()
    };
    let t = std::time::Instant::now();
    println!("{}\n{:?}", s.run().unwrap(), t.elapsed());
}
