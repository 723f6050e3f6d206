//! The functions of one table: its keys in normal form, its look-ups, and how rows come and go.

use std::fmt::Write;

use lockwork_procedure::key::KeyFormat;
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

/// Appends the functions of table number `id`.
pub(super) fn emit(out: &mut String, id: u16, schema: &TableSchema) {
    let name = schema.name();
    let _ = write!(out, "\n/* ---- table {id}: {name} ---- */\n\n");
    key(out, id, schema);
    find(out, id, schema);
    if schema.is_ordered() {
        order(out, id, schema);
    }
    insert(out, id, schema);
    remove(out, id, schema);
}

/// `lw_key_N(image, aligned)`: the normal form of a key image; `aligned` says that it begins at a multiple of 8.
fn key(out: &mut String, id: u16, schema: &TableSchema) {
    let _ = writeln!(out, "static inline ulong4 lw_key_{id}(const __global uchar *image, bool aligned)\n{{");
    if KeyFormat::of(schema).is_one_integer() {
        let _ = writeln!(
            out,
            "    const ulong word = aligned ? *(const __global lw_ulong *)image : lw_load(image, 8);\n    \
             return (ulong4)(word ^ 0x8000000000000000UL, 0, 0, 0);\n}}\n"
        );
        return;
    }
    let mut words: [Vec<String>; 4] = Default::default();
    let mut at = 0;
    for column in schema.key() {
        let (offset, width) = (column.offset - ROW_HEADER_BYTES, column.column_type.width());
        let integer = column.column_type.is_integer();
        for byte in 0..width {
            // Integers become big-endian and lose their sign; text and bytes stand as they are.
            let from = if integer { offset + width - 1 - byte } else { offset + byte };
            let flip = if integer && byte == 0 && column.column_type.is_signed() { " ^ 0x80" } else { "" };
            words[at / 8].push(format!("(ulong)(uchar)(image[{from}]{flip}) << {}", 56 - 8 * (at % 8)));
            at += 1;
        }
    }
    let words = words.map(|word| if word.is_empty() { "0".to_string() } else { word.join(" |\n        ") });
    let _ = writeln!(out, "    return (ulong4)(\n        {});\n}}\n", words.join(",\n        "));
}

/// Whether the tag of an entry is the key itself, so that no row has to be looked at.
fn is_exact(schema: &TableSchema) -> bool {
    KeyFormat::of(schema).fits_one_word()
}

/// `lw_find_N(hash, key)`: the row's handle, or 0.
fn find(out: &mut String, id: u16, schema: &TableSchema) {
    let stride = schema.stride();
    let row = format!("tables[{id}].rows + (ulong)(entry - 1) * {stride}");
    let same = |row: &str| format!("lw_equal(lw_key_{id}(heap + {row} + LW_ROW_KEY, true), key)");
    let _ = writeln!(out, "static LW_CALLED ulong lw_find_{id}(LW_HEAP, ulong hash, ulong4 key)\n{{");
    let _ = writeln!(out, "    const __global uchar *bucket = lw_bucket(heap, tables, {id}, hash);");
    let _ = writeln!(out, "    const __global lw_ulong *tags = (const __global lw_ulong *)bucket;");
    let _ = writeln!(out, "    const __global lw_uint *entries = (const __global lw_uint *)(bucket + 40);");
    if is_exact(schema) {
        let _ = writeln!(out, "    uint entry = 0;");
        let _ = writeln!(out, "    for (uint i = 0; i < LW_PLACES; i++)");
        let _ = writeln!(out, "        entry |= tags[i] == key.s0 ? entries[i] : 0;");
        let _ = writeln!(out, "    if (entry != 0)\n        return {row};");
    } else {
        let _ = writeln!(out, "    for (uint i = 0; i < LW_PLACES; i++) {{");
        let _ = writeln!(out, "        const uint entry = tags[i] == hash ? entries[i] : 0;");
        let _ = writeln!(out, "        if (entry != 0 && {})", same(&format!("({row})")));
        let _ = writeln!(out, "            return {row};\n    }}\n    uint entry;");
    }
    let _ = writeln!(out, "    entry = entries[LW_PLACES];");
    let _ = writeln!(out, "    while (entry != 0) {{\n        const ulong row = {row};");
    let _ = writeln!(out, "        if ({})\n            return row;", same("row"));
    let _ = writeln!(out, "        entry = *lw_next(heap + row);\n    }}\n    return 0;\n}}\n");
}

/// The skiplist: `lw_before_N(key, before)` finds the last node in front of `key` on every level.
fn order(out: &mut String, id: u16, schema: &TableSchema) {
    let stride = schema.stride();
    let _ = write!(
        out,
        "static LW_CALLED uint lw_before_{id}(LW_HEAP, ulong4 key, uint *before)
{{
    uint node = 0;
    for (uint level = LW_LEVELS; level-- > 0;) {{
        uint next = lw_links(heap, tables, {id}, node)[level];
        while (next != 0) {{
            const ulong row = tables[{id}].rows + (ulong)(next - 1) * {stride};
            if (!lw_less(lw_key_{id}(heap + row + LW_ROW_KEY, true), key))
                break;
            node = next;
            next = lw_links(heap, tables, {id}, node)[level];
        }}
        before[level] = node;
    }}
    return lw_links(heap, tables, {id}, node)[0];
}}

static LW_CALLED void lw_link_{id}(LW_HEAP, ulong hash, ulong4 key, uint entry)
{{
    uint before[LW_LEVELS];
    lw_before_{id}(heap, tables, key, before);
    __global lw_uint *links = lw_links(heap, tables, {id}, entry);
    for (uint level = 0; level <= lw_level(hash); level++) {{
        __global lw_uint *link = lw_links(heap, tables, {id}, before[level]) + level;
        links[level] = *link;
        *link = entry;
    }}
}}

static LW_CALLED void lw_unlink_{id}(LW_HEAP, ulong hash, ulong4 key, uint entry)
{{
    uint before[LW_LEVELS];
    lw_before_{id}(heap, tables, key, before);
    const __global lw_uint *links = lw_links(heap, tables, {id}, entry);
    for (uint level = 0; level <= lw_level(hash); level++)
        lw_links(heap, tables, {id}, before[level])[level] = links[level];
}}

"
    );
}

/// `lw_insert_N(hash, key, image, row, spare)`: makes a row with this key and zeros for values; 0, or the abort code.
fn insert(out: &mut String, id: u16, schema: &TableSchema) {
    let stride = schema.stride();
    let tag = if is_exact(schema) { "key.s0" } else { "hash" };
    let _ = write!(
        out,
        "static LW_CALLED uint lw_insert_{id}(
    LW_HEAP, ulong hash, ulong4 key, const __global uchar *image, ulong *row, struct lw_spare *spare)
{{
    if (lw_find_{id}(heap, tables, hash, key) != 0)
        return LW_DUPLICATE_KEY;
    const uint entry = lw_allocate(heap, tables, {id}, spare);
    if (entry == 0)
        return LW_OUT_OF_MEMORY;
    *row = tables[{id}].rows + (ulong)(entry - 1) * {stride};
    lw_address at = heap + *row;
    lw_zero(at, {stride});
    *(__global lw_ulong *)(at + 8) = LW_LIVE;
"
    );
    // Bytes between key columns stay zero, so that a row's image is a function of its columns' values.
    for column in schema.key() {
        let (offset, width) = (column.offset, column.column_type.width());
        let _ = writeln!(out, "    lw_copy_bytes(at + {offset}, image + {}, {width});", offset - ROW_HEADER_BYTES);
    }
    let _ = writeln!(out, "    lw_put_in_bucket(lw_bucket(heap, tables, {id}, hash), {tag}, entry, at);");
    if schema.is_ordered() {
        let _ = writeln!(out, "    lw_link_{id}(heap, tables, hash, key, entry);");
    }
    let _ = writeln!(out, "    return 0;\n}}\n");
}

/// `lw_remove_N(row, spare)`: takes a row out of the indexes and gives its memory back, if that has not been done.
fn remove(out: &mut String, id: u16, schema: &TableSchema) {
    let stride = schema.stride();
    let _ = write!(
        out,
        "static LW_CALLED void lw_remove_{id}(LW_HEAP, ulong row, struct lw_spare *spare)
{{
    if (*(__global lw_ulong *)(heap + row + 8) % 256 != LW_LIVE)
        return;
    const uint entry = (uint)((row - tables[{id}].rows) / {stride}) + 1;
    const ulong4 key = lw_key_{id}(heap + row + LW_ROW_KEY, true);
    const ulong hash = lw_hash(key);
"
    );
    if schema.is_ordered() {
        let _ = writeln!(out, "    lw_unlink_{id}(heap, tables, hash, key, entry);");
    }
    let _ = write!(
        out,
        "    lw_take_from_bucket(lw_bucket(heap, tables, {id}, hash), entry, heap + tables[{id}].rows, {stride});
    *(__global lw_ulong *)(heap + row + 8) = 0;
    lw_free(heap, tables, {id}, entry, spare);
}}

"
    );
}
