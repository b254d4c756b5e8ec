"""A Wireshark dissector in Lua, made from the field table in ``proto/wire.py``.

Its text is two parts: tables of layouts, kinds, flags and limits, written by this module, and a body that walks them and
knows no offset. Fields are named ``zenjun.FIELD`` for the common header and ``zenjun.LAYOUT.FIELD`` for the rest (``names()``
lists all). It takes a PDU apart as the scapy layers of ``tools/dissect.py`` do, cut and malformed ones too: as far as whole
structures go; what is left is ``zenjun.rest``. Lua 5.2 (Wireshark 3 and 4.0) and later ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import Final

from ....proto import wire

HEXADECIMAL: Final = frozenset(
    "cluster check group state trans digest fingerprint boot view members.proposal past reset_view".split()  # noqa: SIM905
)
"""Fields that are names or bitmaps rather than quantities (``FIELD`` or ``FIELD.LAYOUT``)."""
ENUMS: Final[dict[str, type[IntEnum]]] = {"kind": wire.Kind, "type": wire.MessageType}
FLAGS: Final[dict[str, type[IntFlag]]] = {"flags": wire.Flag, "mflags": wire.MessageFlag, "oflags": wire.OpenFlag}
ON_WIRE: Final = tuple(layout for layout in wire.LAYOUTS if layout is not wire.VIEW)

EXTRA: Final[dict[str, str]] = {
    "zenjun.ack": "next expected from each station, in the order of their numbers",
    "zenjun.pack": "what every station is known to have of each one's stream",
    "zenjun.message.data": "bytes of the message or fragment",
    "zenjun.open.host": "host name",
    "zenjun.configuration.options": "options that are not at their defaults",
    "zenjun.configuration.proposed_options": "those of the next configuration",
    "zenjun.rest": "what could not be read",
    "zenjun.padding": "what follows the PDU in its frame",
    "zenjun.check_ok": "whether both checksums fit; absent if bytes are missing or it is switched off",
    "zenjun.complete": "whether all of the PDU is there and was understood",
}
"""Fields that stand in no layout."""


def field_name(layout: wire.Layout, field: wire.Field) -> str:
    """Name in Wireshark's filters."""
    return f"zenjun.{field.name}" if layout is wire.HEADER else f"zenjun.{layout.name}.{field.name}"


def flag_names() -> dict[str, str]:
    """Name in Wireshark's filters of every single flag, with the text of its field."""
    out = {}
    for layout in ON_WIRE:
        for field in layout.fields:
            for flag in FLAGS.get(field.name, ()):
                out[f"{field_name(layout, field)}.{(flag.name or '').lower()}"] = field.name
    return out


def names() -> list[str]:
    """All names that can be used in filters, but for expert.* ones."""
    fields = [field_name(layout, field) for layout in ON_WIRE for field in layout.fields]
    return [*fields, *flag_names(), *EXTRA]


def quoted(text: str) -> str:
    """A Lua string."""
    body = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{body}"'


def _enum(name: str, members: Iterable[IntEnum]) -> str:
    return f"local {name} = {{" + ", ".join(f"[{int(m)}] = {quoted(m.name)}" for m in members) + "}"


def _layout(layout: wire.Layout) -> str:
    out = [f"layouts.{layout.name} = {{size = {layout.size}, fields = {{"]
    for field in layout.fields:
        hexadecimal = field.name in HEXADECIMAL or f"{field.name}.{layout.name}" in HEXADECIMAL
        options = [quoted(field.name), quoted(field_name(layout, field)), str(layout.offset(field.name)), str(field.width)]
        options += ["true" if hexadecimal else "false", quoted(field.help)]
        if field.name in ENUMS:
            options.append(f"values = {field.name}_names")
        if field.name in FLAGS:
            options.append(f"flags = {field.name}_bits")
        out.append("  {" + ", ".join(options) + "},")
    return "\n".join(out) + "\n}}"


def _bits(name: str, flags: type[IntFlag]) -> str:
    return f"local {name}_bits = {{" + ", ".join(f"{{{int(f)}, {quoted(f.name or '')}}}" for f in flags) + "}"


def _tables(ethertype: int) -> str:
    sequenced = ", ".join(f"[{int(kind)}] = true" for kind in sorted(wire.SEQUENCED))
    payload = ", ".join(
        f"[{int(kind)}] = {{" + ", ".join(quoted(layout.name) for layout in layouts) + "}"
        for kind, layouts in sorted(wire.PAYLOAD.items())
    )
    repeats = ", ".join(f"{layout.name} = {quoted(layout.repeat)}" for layout in ON_WIRE if layout.repeat)
    numbers = {
        "VERSION": wire.VERSION,
        "STATIONS_MAX": wire.STATIONS_MAX,
        "NAK_RANGES_MAX": wire.NAK_RANGES_MAX,
        "OPEN_NAME_MAX": wire.OPEN_NAME_MAX,
        "DATA": int(wire.Kind.DATA),
        "SERVICE": int(wire.Kind.SERVICE),
        "PACK": int(wire.Flag.PACK),
        "PAIR": int(wire.Flag.PAIR),
        "FRAGMENT": int(wire.MessageFlag.FRAGMENT),
        "LAST": int(wire.MessageFlag.LAST),
        "CONFIGURED": int(wire.OpenFlag.CONFIGURED),
        "ETHERTYPE": ethertype,
    }
    return "\n".join(
        [
            *(f"local {name} = {value}" for name, value in numbers.items()),
            *(_enum(f"{name}_names", members) for name, members in ENUMS.items()),
            *(_bits(name, flags) for name, flags in FLAGS.items()),
            f"local sequenced = {{{sequenced}}}",
            f"local payloads = {{{payload}}}",
            f"local repeats = {{{repeats}}}",
            "local extra_help = {" + ", ".join(f"[{quoted(name)}] = {quoted(text)}" for name, text in EXTRA.items()) + "}",
            "local layouts = {}",
            *(_layout(layout) for layout in ON_WIRE),
        ]
    )


def lua(ethertype: int = wire.ETHERTYPE) -> str:
    """The dissector's text. ethertype: 0x0600..0xffff, zenjun's unless Wireshark's preference sets another one."""
    if not 0x0600 <= ethertype <= 0xFFFF:
        raise ValueError(f"EtherType {ethertype:#x} is not in 0x0600..0xffff")
    return HEAD + _tables(ethertype) + "\n" + BODY


HEAD: Final = """\
-- zenjun in Wireshark: put this file into the folder "Personal Lua Plugins" (Help, About, Folders), or start it so:
-- wireshark -X lua_script:zenjun.lua
-- Made by `zenjun pcap dissector` from the table of fields that all of zenjun is made from; do not edit.

"""

BODY: Final = r"""
-- Bit operations: of Lua 5.3 and later, or of the library that Wireshark brings. All results are 0 .. 2^32 - 1.
local bxor, band, rshift
local native = load("return {function(a, b) return a ~ b end, function(a, b) return a & b end, function(a, n) return a >> n end}")
if native then
  native = native()
  bxor, band, rshift = native[1], native[2], native[3]
elseif bit32 then
  bxor, band, rshift = bit32.bxor, bit32.band, bit32.rshift
else
  bxor = function(a, b) return bit.bxor(a, b) % 0x100000000 end
  band = function(a, b) return bit.band(a, b) % 0x100000000 end
  rshift = function(a, n) return bit.rshift(a, n) % 0x100000000 end
end

-- CRC-32C (Castagnoli), reflected polynomial
local crc_table = {}
for value = 0, 255 do
  local c = value
  for _ = 1, 8 do
    if c % 2 == 1 then c = bxor(rshift(c, 1), 0x82F63B78) else c = rshift(c, 1) end
  end
  crc_table[value] = c
end

local function crc32c(text, crc)
  crc = bxor(crc or 0, 0xFFFFFFFF)
  for at = 1, #text do
    crc = bxor(rshift(crc, 8), crc_table[band(bxor(crc, text:byte(at)), 0xFF)])
  end
  return bxor(crc, 0xFFFFFFFF)
end

-- Fields

local zenjun = Proto("zenjun", "zenjun totally ordered broadcast")
local F = {}        -- by their name in filters
local all_fields = {}
local makers = {[1] = ProtoField.uint8, [2] = ProtoField.uint16, [4] = ProtoField.uint32, [8] = ProtoField.uint64}

local function add_field(name, field)
  F[name] = field
  all_fields[#all_fields + 1] = field
end

for _, layout in pairs(layouts) do
  layout.at = {}
  for _, f in ipairs(layout.fields) do
    local title, name, offset, width, hexadecimal, help = f[1], f[2], f[3], f[4], f[5], f[6]
    layout.at[title] = offset
    local base = (hexadecimal or f.flags) and base.HEX or base.DEC
    add_field(name, makers[width](name, title, base, f.values, nil, help))
    for _, bit_of in ipairs(f.flags or {}) do
      local bit_name = name .. "." .. bit_of[2]:lower()
      add_field(bit_name, ProtoField.bool(bit_name, bit_of[2], 8 * width, nil, bit_of[1]))
    end
  end
end
add_field("zenjun.ack", ProtoField.uint32("zenjun.ack", "ack", base.DEC, nil, nil, extra_help["zenjun.ack"]))
add_field("zenjun.pack", ProtoField.uint32("zenjun.pack", "pack", base.DEC, nil, nil, extra_help["zenjun.pack"]))
add_field("zenjun.message.data", ProtoField.bytes("zenjun.message.data", "data", base.NONE, extra_help["zenjun.message.data"]))
add_field("zenjun.rest", ProtoField.bytes("zenjun.rest", "rest", base.NONE, extra_help["zenjun.rest"]))
add_field("zenjun.padding", ProtoField.bytes("zenjun.padding", "padding", base.NONE, extra_help["zenjun.padding"]))
local function add_text(name, title) add_field(name, ProtoField.string(name, title, base.UNICODE, extra_help[name])) end
add_text("zenjun.open.host", "host")
add_text("zenjun.configuration.options", "options")
add_text("zenjun.configuration.proposed_options", "proposed_options")
add_field("zenjun.check_ok", ProtoField.bool("zenjun.check_ok", "check_ok", base.NONE, nil, nil, extra_help["zenjun.check_ok"]))
add_field("zenjun.complete", ProtoField.bool("zenjun.complete", "complete", base.NONE, nil, nil, extra_help["zenjun.complete"]))
zenjun.fields = all_fields

local E = {}
for _, e in ipairs({
  {"length", "The payload's length reaches beyond the frame", expert.group.MALFORMED, expert.severity.ERROR},
  {"cut", "The frame was cut when it was captured", expert.group.UNDECODED, expert.severity.NOTE},
  {"short", "Too short for a header", expert.group.MALFORMED, expert.severity.ERROR},
  {"version", "Unknown version", expert.group.PROTOCOL, expert.severity.WARN},
  {"kind", "Unknown kind", expert.group.PROTOCOL, expert.severity.WARN},
  {"checksum", "Wrong checksum", expert.group.CHECKSUM, expert.severity.ERROR},
  {"station", "No such station", expert.group.PROTOCOL, expert.severity.WARN},
  {"payload", "The payload is not what its kind wants", expert.group.MALFORMED, expert.severity.ERROR},
}) do
  E[e[1]] = ProtoExpert.new("zenjun.expert." .. e[1], e[2], e[3], e[4])
end
zenjun.experts = E

zenjun.prefs.check = Pref.bool("Verify checksums", true, "Compute CRC-32C of every PDU (in Lua: it takes time)")
zenjun.prefs.ethertype = Pref.uint("EtherType", ETHERTYPE, "What zenjun's frames bear; decimal")

-- Reading. b = {tvb, size}: size is how many bytes were captured; nothing is read beyond.

local function whole(b, at, size) return at + size <= b.size end

-- Adds a layout's fields to a tree; returns their values by name (64-bit ones are left out).
local function add_layout(tree, b, at, layout)
  local values = {}
  for _, f in ipairs(layout.fields) do
    local range = b.tvb(at + f[3], f[4])
    local item = tree:add(F[f[2]], range)
    if f[4] <= 4 then values[f[1]] = range:uint() end
    for _, bit_of in ipairs(f.flags or {}) do item:add(F[f[2] .. "." .. bit_of[2]:lower()], range) end
    values["item " .. f[1]] = item
  end
  return values
end

local function add_vector(tree, b, at, name, stations)
  local count = math.max(0, math.min(stations, math.floor((b.size - at) / 4)))
  local shown = {}
  local sub = tree
  if count > 0 then
    sub = tree:add(zenjun, b.tvb(at, 4 * count), name)
  end
  for station = 1, count do
    local range = b.tvb(at + 4 * (station - 1), 4)
    sub:add(F["zenjun." .. name], range):set_text(string.format("station %d: %.0f", station, range:uint()))
    shown[#shown + 1] = string.format("%.0f", range:uint())
  end
  if count > 0 then sub:set_text(name .. ": " .. table.concat(shown, ",")) end
  return at + 4 * count, count, table.concat(shown, ",")
end

-- Payloads: each returns where it ended, whether all that it announces is there, and what the info column gets.

local function add_messages(tree, b, at, stop)
  local message, fragment = layouts.message, layouts.fragment
  local count, bytes, pieces, fine = 0, 0, {}, true
  while at + message.size <= stop do
    local size = b.tvb(at + message.at.size, 4):uint()
    local fragmented = band(b.tvb(at + message.at.mflags, 1):uint(), FRAGMENT) ~= 0
    local head = message.size + (fragmented and fragment.size or 0)
    if at + head + size > stop then break end
    count, bytes = count + 1, bytes + size
    local sub = tree:add(zenjun, b.tvb(at, head + size), "message " .. count .. ": " .. size .. " bytes")
    local m = add_layout(sub, b, at, message)
    if fragmented then
      local f = add_layout(sub, b, at + message.size, fragment)
      pieces[#pieces + 1] = f.offset .. "+" .. size .. "/" .. f.total
      local ends = f.offset + size == f.total
      if size == 0 or f.offset + size > f.total or ends ~= (band(m.mflags, LAST) ~= 0) then
        fine = false
        sub:add_proto_expert_info(E.payload, "a fragment that is empty, beyond its message, or wrong about being the last")
      end
    end
    if size > 0 then sub:add(F["zenjun.message.data"], b.tvb(at + head, size)) end
    at = at + head + size
  end
  local info = count .. (count == 1 and " message " or " messages ") .. bytes .. " B"
  if #pieces > 0 then info = info .. " fragment " .. table.concat(pieces, " ") end
  return at, at == stop, info
end

local function add_items(tree, b, at, stop, name, count)
  local items, layout = {}, layouts[name]
  while #items < count and at + layout.size <= stop do
    local sub = tree:add(zenjun, b.tvb(at, layout.size), name .. " " .. (#items + 1))
    items[#items + 1] = add_layout(sub, b, at, layout)
    at = at + layout.size
  end
  return at, items
end

-- What an OPEN says of configurations, if it is all there; where it ends.
local function add_configuration(tree, b, at, stop)
  local layout = layouts.configuration
  local texts = at + layout.size
  if texts > stop then return at end
  local options = b.tvb(at + layout.at.options_length, 2):uint()
  local proposed = b.tvb(at + layout.at.proposed_length, 2):uint()
  if texts + options + proposed > stop then return at end
  local sub = tree:add(zenjun, b.tvb(at, layout.size + options + proposed), "configuration")
  add_layout(sub, b, at, layout)
  if options > 0 then sub:add_packet_field(F["zenjun.configuration.options"], b.tvb(texts, options), ENC_UTF_8) end
  if proposed > 0 then
    sub:add_packet_field(F["zenjun.configuration.proposed_options"], b.tvb(texts + options, proposed), ENC_UTF_8)
  end
  return texts + options + proposed
end

local describe = {}
function describe.nak(values, items, header)
  local shown = {}
  for _, r in ipairs(items) do
    if r.span == 0 then values["item count"]:add_proto_expert_info(E.payload, "an empty range") end
    shown[#shown + 1] = r.span == 1 and tostring(r.first) or (r.first .. ".." .. (r.first + r.span - 1) % 0x100000000)
  end
  if values.count == 0 or values.count > NAK_RANGES_MAX then
    values["item count"]:add_proto_expert_info(E.payload, "a NAK has 1.." .. NAK_RANGES_MAX .. " ranges")
  end
  if values.stream == 0 or values.stream > header.stations then
    values["item stream"]:add_proto_expert_info(E.station)
  end
  return "asks station " .. header.target .. " for stream " .. values.stream .. ": " .. table.concat(shown, " ")
end
function describe.open(values, items)
  local shown = {}
  for _, m in ipairs(items) do shown[#shown + 1] = tostring(m.station) end
  if values.name_length > OPEN_NAME_MAX then
    values["item name_length"]:add_proto_expert_info(E.payload, "a host name has at most " .. OPEN_NAME_MAX .. " bytes")
  end
  return "instance " .. values.proposal .. " of " .. (#shown > 0 and table.concat(shown, ",") or "nobody yet")
end
function describe.proposal(values, items)
  local shown = {}
  for _, c in ipairs(items) do shown[#shown + 1] = c.changed .. ":" .. c.value end
  return "changes " .. table.concat(shown, " ")
end
function describe.reset(values) return "epoch " .. values.epoch end
function describe.confirm(values) return "counted " .. values.counted end

local function add_payload(tree, b, at, stop, header)
  local kinds = payloads[header.kind]
  if not kinds then return at, at == stop, "" end
  if header.kind == DATA then return add_messages(tree, b, at, stop) end
  local first, second = layouts[kinds[1]], kinds[2]
  if at + first.size > stop then return at, false, "" end
  local sub = tree:add(zenjun, b.tvb(at, stop - at), kinds[1])
  local values = add_layout(sub, b, at, first)
  at = at + first.size
  local items, fine = {}, true
  if second then
    local count = values[repeats[second]]
    at, items = add_items(sub, b, at, stop, second, count)
    fine = #items == count
  end
  if values.name_length then
    local size = math.min(values.name_length, stop - at)
    fine = fine and size == values.name_length
    if size > 0 then sub:add_packet_field(F["zenjun.open.host"], b.tvb(at, size), ENC_UTF_8) end
    at = at + size
  end
  if values.oflags and band(values.oflags, CONFIGURED) ~= 0 then at = add_configuration(sub, b, at, stop) end
  local text = describe[kinds[1]] and describe[kinds[1]](values, items, header) or ""
  return at, fine and at == stop, text
end

local function verify(b, head, stop)
  local at = layouts.header.at.check
  local covered = b.tvb(0, at):raw() .. (head > at + 8 and b.tvb(at + 8, head - at - 8):raw() or "")
  local payload = stop > head and b.tvb(head, stop - head):raw() or ""
  return crc32c(covered) == b.tvb(at, 4):uint() and crc32c(payload) == b.tvb(at + 4, 4):uint()
end

local function flag_text(flags)
  local out = {}
  for _, f in ipairs(flags_bits) do
    if f[1] ~= PACK and band(flags, f[1]) ~= 0 then out[#out + 1] = f[2] end
  end
  return #out > 0 and " [" .. table.concat(out, ",") .. "]" or ""
end

local function judge_header(h)
  if h.version ~= VERSION then h["item version"]:add_proto_expert_info(E.version) end
  if not kind_names[h.kind] then h["item kind"]:add_proto_expert_info(E.kind) end
  if h.kind == SERVICE then h["item kind"]:add_proto_expert_info(E.kind, "Reserved kind: dropped on receipt") end
  if h.stations == 0 or h.stations > STATIONS_MAX then
    h["item stations"]:add_proto_expert_info(E.station, "A schema has 1.." .. STATIONS_MAX .. " stations")
  end
  local most, least = h.stations, 0
  if band(h.flags, PAIR) ~= 0 then
    most, least = STATIONS_MAX, 1 -- src and target are stations of the schema, the vectors those of a link of two
    if h.stations ~= 2 then h["item stations"]:add_proto_expert_info(E.station, "A link has two stations") end
  end
  if h.src == 0 or h.src > most then h["item src"]:add_proto_expert_info(E.station) end
  if h.target < least or h.target > most then h["item target"]:add_proto_expert_info(E.station) end
end

local function captured(tvb)
  local ok, size = pcall(function() return tvb:captured_len() end)
  return ok and size or tvb:len()
end

function zenjun.dissector(tvb, pinfo, root)
  pinfo.cols.protocol = "ZENJUN"
  local b = {tvb = tvb, size = captured(tvb)}
  local reported = tvb:reported_len()
  local tree = root:add(zenjun, tvb(0, b.size))
  if not whole(b, 0, layouts.header.size) then
    if b.size > 0 then tree:add(F["zenjun.rest"], tvb(0, b.size)) end
    if reported < layouts.header.size then tree:add_proto_expert_info(E.short) else tree:add_proto_expert_info(E.cut) end
    pinfo.cols.info = "too short for a header"
    return b.size
  end
  local h = add_layout(tree, b, 0, layouts.header)
  judge_header(h)
  local packed = band(h.flags, PACK) ~= 0
  local acks, pack_count, ack_text = 0, 0, ""
  local at = layouts.header.size
  at, acks, ack_text = add_vector(tree, b, at, "ack", h.stations)
  local pack_text
  if packed then at, pack_count, pack_text = add_vector(tree, b, at, "pack", h.stations) end
  local wanted = packed and 2 * h.stations or h.stations
  local head = layouts.header.size + 4 * wanted
  local stop = head + h.length
  local cut = stop > b.size
  if stop > reported then
    h["item length"]:add_proto_expert_info(E.length)
  elseif cut then
    tree:add_proto_expert_info(E.cut)
  end
  local complete, text, limit = false, "", math.min(stop, b.size)
  if acks + pack_count == wanted then
    local fine
    at, fine, text = add_payload(tree, b, at, limit, h)
    complete = fine and not cut and (payloads[h.kind] ~= nil) and (h.length > 0 or h.kind == DATA)
    if not cut and not complete then tree:add_proto_expert_info(E.payload) end
  end
  local rest = limit - at
  if acks + pack_count < wanted then rest = math.min(rest, h.length) end -- the vectors are cut: nobody knows what this was
  if rest > 0 then tree:add(F["zenjun.rest"], tvb(at, rest)) end
  if stop < b.size then tree:add(F["zenjun.padding"], tvb(stop, b.size - stop)) end
  tree:add(F["zenjun.complete"], complete):set_generated()
  local bad = ""
  if zenjun.prefs.check and not cut then
    local good = verify(b, head, stop)
    tree:add(F["zenjun.check_ok"], good):set_generated()
    if not good then
      h["item check"]:add_proto_expert_info(E.checksum)
      bad = " BAD CHECKSUM"
    end
  end
  if cut then bad = bad .. " CUT" elseif not complete then bad = bad .. " MALFORMED" end
  local kind = kind_names[h.kind] or ("kind " .. h.kind)
  pinfo.cols.info = string.format("%d.%.0f %s %s %.0f instance %.0f ack %s%s%s%s%s", h.src, h.incarnation, kind,
    sequenced[h.kind] and "seq" or "next", h.seq, h.instance, ack_text, pack_text and " pack " .. pack_text or "",
    flag_text(h.flags), text ~= "" and "  " .. text or "", bad)
  tree:append_text(string.format(", %s of station %d, seq %.0f", kind, h.src, h.seq))
  return limit
end

local by_ethertype = DissectorTable.get("ethertype")
local bound = zenjun.prefs.ethertype
by_ethertype:add(bound, zenjun)
function zenjun.prefs_changed()
  if zenjun.prefs.ethertype ~= bound then
    by_ethertype:remove(bound, zenjun)
    bound = zenjun.prefs.ethertype
    by_ethertype:add(bound, zenjun)
  end
end
"""
