//! Covers of dependent procedures.

use super::super::{cover, live};
use crate::assembly::assemble;
use crate::key::Key;
use crate::schema::{ColumnType, TableSchema};
use crate::verified::Verified;
use crate::verify::verify;

fn verified(text: &str) -> Verified {
    let schemas = [
        TableSchema::new("heads", &[("id", ColumnType::I64), ("next", ColumnType::I64)], 1, false).unwrap(),
        TableSchema::new(
            "lines",
            &[("head", ColumnType::U16), ("kind", ColumnType::U8), ("number", ColumnType::U32), ("v", ColumnType::I64)],
            3,
            true,
        )
        .unwrap(),
    ];
    let procedure = assemble(text, schemas.as_slice()).unwrap().procedure;
    verify(procedure, schemas.as_slice()).unwrap()
}

/// Inserts a line under a number that it has read.
fn appending(body: &str) -> Verified {
    verified(&format!(
        "procedure p\ntable heads\ntable lines\nparam id: i64\nparam kind: u8\nscratch head: u16\nscratch k: u8
         scratch number: u32\nload r1, [id]\nstore r1, [head]\nload r2, [kind]\nstore r2, [k]\nupdate c0, heads, [id]
         ret r3, c0\nloadr r4, r3[heads.next]\n{body}\ncommit"
    ))
}

#[test]
fn a_cover_knows_the_leading_columns() {
    let append = appending("store r4, [number]\ninsert c1, lines, [head]\nret r5, c1");
    let cover = cover(&append).expect("head and kind are arguments");
    let mut block = vec![0; append.procedure.layout().block_bytes as usize];
    block[32..40].copy_from_slice(&7_i64.to_le_bytes());
    block[40] = 9;
    let mut accesses = Vec::new();
    cover.collect(&block, &mut accesses);
    let known: Vec<u8> = accesses.iter().map(|access| access.known).collect();
    assert_eq!(known, [Key::BYTES, 3]);
    assert_eq!(cover.spans().collect::<Vec<_>>(), [1]);
    let (first, last) = accesses[1].key.span(accesses[1].known);
    let line = |number: u32| {
        let mut image = vec![0; append.tables[1].key.image_bytes()];
        image[..2].copy_from_slice(&7_u16.to_le_bytes());
        image[2] = 9;
        image[4..8].copy_from_slice(&number.to_le_bytes());
        append.tables[1].key.encode(&image)
    };
    assert!((first..=last).contains(&line(0)) && (first..=last).contains(&line(u32::MAX)));
    block[40] = 10;
    accesses.clear();
    cover.collect(&block, &mut accesses);
    let (above, _) = accesses[1].key.span(accesses[1].known);
    assert!(last < above);
}

#[test]
fn there_is_no_cover_where_too_little_is_known() {
    // Not even the first column.
    assert_eq!(cover(&appending("store r4, [head]\nsearch c1, lines, [head]\nret r5, c1")), None);
    // Whether it runs.
    assert_eq!(
        cover(&appending(
            "cmp r4, 3\nbe no\nsearch c1, heads, [id]\nret r5, c1\ncommit\nno:\nupdate c2, lines, [head]\nret r6, c2"
        )),
        None
    );
    // Where a scan begins.
    let scan = "store r4, [number]\nscan c1, lines.v, [head], [rows], 2\nret r5, c1";
    let text = format!("scratch rows: i64[2]\n{scan}");
    let scanning = verified(&format!(
        "procedure p\ntable heads\ntable lines\nparam id: i64\nscratch head: u16\nscratch k: u8\nscratch number: u32
         {}\nload r1, [id]\nstore r1, [head]\nsearch c0, heads, [id]\nret r3, c0\nloadr r4, r3[heads.next]
         {scan}\ncommit",
        text.lines().next().unwrap()
    ));
    assert_eq!(cover(&scanning), None);
}

#[test]
fn nothing_is_live_behind_the_last_access() {
    let append = appending("store r4, [number]\ninsert c1, lines, [head]\nret r5, c1");
    let code = &append.procedure.code;
    let live = live(&append);
    let rets: Vec<bool> =
        (0..code.len()).filter(|&at| code[at].opcode == crate::isa::Opcode::Ret).map(|at| live[at]).collect();
    assert_eq!(rets, [true, false]);
}
