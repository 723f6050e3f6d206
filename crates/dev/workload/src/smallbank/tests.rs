//! Input from a seed, and checks that see what is wrong.

use super::*;
use crate::testing;

fn bound(config: SmallbankConfig) -> Smallbank {
    let mut bank = Smallbank::new(config).unwrap();
    testing::bind(&mut bank);
    bank
}

fn small() -> SmallbankConfig {
    SmallbankConfig { accounts: 100, ..SmallbankConfig::default() }
}

#[test]
fn seed_1_gives_these_rows_and_calls() {
    let mut bank = Smallbank::new(small()).unwrap();
    assert_eq!(testing::golden(&mut bank), (3_278_336_243_966_672_737, 7_246_735_468_401_452_931));
}

#[test]
fn the_mix_is_as_the_weights_say_and_pairs_differ() {
    // So many that a weight that is wrong by one is seen.
    const CALLS: usize = 100_000;
    let mut bank = bound(SmallbankConfig { hot: 0.9, hot_accounts: 2, ..small() });
    let batch = testing::filled(&mut bank, CALLS);
    let (mut counts, mut hot) = ([0_u64; 6], 0);
    for block in batch.blocks() {
        let number = block.procedure() as usize;
        counts[number] += 1;
        let places = &bank.arguments[number].0;
        let first = places[0].get(block.bytes());
        hot += u64::from(first < 2);
        assert!((0..100).contains(&first));
        if matches!(Kind::ALL[number], Kind::Amalgamate | Kind::SendPayment) {
            assert_ne!(first, places[1].get(block.bytes()));
        }
    }
    // H-Store's mix.
    for (kind, percent) in [
        (Kind::Amalgamate, 15),
        (Kind::Balance, 15),
        (Kind::DepositChecking, 15),
        (Kind::SendPayment, 25),
        (Kind::TransactSavings, 15),
        (Kind::WriteCheck, 15),
    ] {
        let (count, expected) = (counts[kind as usize], CALLS as u64 / 100 * percent);
        assert!(count.abs_diff(expected) < CALLS as u64 / 200, "{kind:?}: {count} of {expected}");
    }
    assert!((89_000..94_000).contains(&hot), "{hot}");
}

#[test]
fn money_that_was_paid_in_is_expected_and_a_cent_more_is_a_violation() {
    let mut bank = bound(small());
    let mut rows = testing::images(&bank);
    let mut batch = testing::filled(&mut bank, 50);
    let deposit = (0..50).find(|&at| batch.block(at).procedure() == Kind::DepositChecking as u32).unwrap();
    batch.block_mut(deposit).set_outcome(Status::Committed, 0);
    let amount = bank.arguments[Kind::DepositChecking as usize].0[1].get(batch.block(deposit).bytes());
    bank.observe(&batch);
    assert!(testing::check(&mut bank, &rows).unwrap_err().contains("sum to 200000000"));
    let place = Place::column(&Smallbank::schemas()[2], "balance");
    place.put(&mut rows[250].1, 1_000_000 + amount);
    assert!(testing::check(&mut bank, &rows).unwrap().contains("1 committed"));
    place.put(&mut rows[251].1, 1_000_001);
    assert!(testing::check(&mut bank, &rows).unwrap_err().contains("should be there"));
    place.put(&mut rows[150].1, -1);
    assert!(testing::check(&mut bank, &rows).unwrap_err().contains("a savings account has a balance of -1"));
    assert!(testing::check(&mut bank, &rows[1..100]).unwrap_err().contains("accounts has 99 rows of 100"));
}

#[test]
fn a_negative_answer_is_a_violation() {
    let mut bank = bound(small());
    let mut batch = testing::filled(&mut bank, 200);
    let checks: Vec<usize> = (0..200).filter(|&at| batch.block(at).procedure() == Kind::WriteCheck as u32).collect();
    let mut block = batch.block_mut(checks[0]);
    block.set_outcome(Status::Committed, 0);
    let (arguments, taken) = &bank.arguments[Kind::WriteCheck as usize];
    let amount = arguments[1].get(block.bytes());
    taken.put(block.bytes(), amount + 1);
    assert_eq!(bank.check_results(&batch), Ok(1));
    taken.put(batch.block_mut(checks[0]).bytes(), amount + 2);
    let error = bank.check_results(&batch).unwrap_err().to_string();
    assert!(error.contains(&format!("block {}, write_check", checks[0])), "{error}");
}

#[test]
fn impossible_options_are_refused_by_name() {
    let cases = [
        ("accounts", SmallbankConfig { accounts: 1, ..small() }),
        ("balance", SmallbankConfig { balance: -1, ..small() }),
        ("theta", SmallbankConfig { theta: 1.0, ..small() }),
        ("hot", SmallbankConfig { hot: f64::NAN, ..small() }),
        ("hot_accounts", SmallbankConfig { hot: 0.5, hot_accounts: 101, ..small() }),
        ("amount_max", SmallbankConfig { amount_max: 0, ..small() }),
    ];
    for (option, config) in cases {
        let error = Smallbank::new(config).unwrap_err();
        assert!(matches!(error, WorkloadError::Option { option: named, .. } if named == option), "{option}: {error}");
    }
}

#[test]
fn procedures_of_others_are_refused() {
    let mut bank = Smallbank::new(small()).unwrap();
    assert_eq!(bank.bind(&mut |_| None), Err(WorkloadError::Unbound("amalgamate".into())));
    let foreign = bank.bind(&mut |_| Some((0, lockwork_procedure::program::Procedure::default())));
    assert!(matches!(foreign, Err(WorkloadError::Foreign { field, .. }) if field == "from"));
}
