// Objects that are written in place: the base of store.reserve(), and of writing bytes that other machines sent.
#include <cstring>
#include <memory>
#include <utility>

#include "bindings/objects.h"
#include "objects/durable.h"
#include "objects/forms.h"
#include "objects/weights.h"

namespace di::py {
namespace {

struct ReserveRequest {
  const nb::bytes& header;  // of a packed value; or a whole ArrayForm
  u64 payload;
  nb::handle id;
  double ttl;
  bool foreign;  // the bytes come from another machine
  bool named;    // an object with an id; otherwise it becomes a version of weights
};

// An object of given size that is written in place. It owns the memory of the arrays over the object. Until its
// destruction the block is not freed, even after discard(), and the sealed or published object stays pinned.
class Reserved {
 public:
  Reserved(ArenaPointer arena, const ReserveRequest& wanted)
      : arena_(entered(std::move(arena))),
        draft_(std::make_unique<Draft>(*arena_, Deadline::slice())),
        bytes_(wanted.payload),
        named_(wanted.named) {
    DraftRequest request;
    if (named_) {
      choose_id(*arena_, wanted.id, id_);
      request.id = id_;
      request.expires_ns = expiry_of(wanted.ttl);
    } else if (!wanted.id.is_none() || wanted.ttl > 0) {
      throw Error(Code::kInvalid, "a draft of weights has no id, and no ttl");
    }
    const u8* const header = reinterpret_cast<const u8*>(wanted.header.c_str());
    const u64 header_bytes = wanted.header.size();
    const bool array = holds_array(header, header_bytes);
    if (header_bytes > UINT32_MAX) throw Error(Code::kInvalid, "a header of more than 4 GiB");
    const u64 start = array ? sizeof(ArrayForm) : packed_payload_at(header_bytes);
    if (bytes_ > ~u64{0} - start) throw Error(Code::kCapacity, "an object of more than 2^64 bytes");
    if (array && (header_bytes != start || read_array_form(header, start + bytes_).bytes != bytes_))
      throw Error(Code::kCorruptData, "received the header of an array that does not fit its size");
    request.bytes = start + bytes_;
    u8* const block = make_block(arena_, request, Deadline::slice(), draft_.get());
    u8* to = block;
    if (!array) {
      const PackedForm form{wanted.foreign ? kFormForeign : kFormPacked, static_cast<u32>(header_bytes), bytes_};
      std::memcpy(to, &form, sizeof form);
      to += sizeof form;
    }
    std::memcpy(to, header, header_bytes);
    payload_ = block + start;
  }
  ~Reserved() {
    if (pin_ != kNone) arena_->ledger().drop(pin_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  nb::bytes id() const {
    if (!named_) throw Error(Code::kStoreError, "a draft of weights has no id");
    return bytes_of(id_);
  }
  u8* payload() const { return payload_; }
  u64 bytes() const { return bytes_; }
  void seal() {
    finish(true, [this](u32 pin) {
      DI_FAULT("put.before_seal");
      draft_->seal_pinned(pin, Deadline::slice());
      return 0;
    });
  }
  void seal_durable() {
    finish(true, [this](u32 pin) {
      const MaybeRelease release(true);
      const DurableDraft one{draft_.get(), id_, pin};
      keep_objects(*arena_, {&one, 1});
      return 0;
    });
  }
  // Returns 0 and leaves the draft as it was if `at` is not above the newest version.
  i64 publish(const std::string& name, u64 keep, i64 at) {
    return finish(false, [&](u32 pin) {
      Weights weights(arena_->heap());
      const u32 index = weights.entry(name, Deadline::slice());
      return weights.publish(index, draft_.get(), keep, Deadline::slice(), nullptr, pin, at);
    });
  }
  i64 publish_durable(const std::string& name, u64 keep) {
    return finish(false, [&](u32 pin) {
      const MaybeRelease release(true);
      return di::publish_durable(*arena_, name, draft_.get(), keep, pin);
    });
  }

 private:
  // Admits one thread at a time: the calls release the GIL while they wait for a lock or the drive.
  class SealTurn {
   public:
    explicit SealTurn(bool& taken) : taken_(taken) {
      if (std::exchange(taken_, true)) throw Error(Code::kStoreError, "another thread is sealing this draft");
    }
    ~SealTurn() { taken_ = false; }
    SealTurn(const SealTurn&) = delete;
    SealTurn& operator=(const SealTurn&) = delete;

   private:
    bool& taken_;
  };

  // Lets `how(pin)` seal or publish the draft, and pin it with that ledger entry. If `how` throws, the draft is
  // unchanged.
  template <class How>
  auto finish(bool named, const How& how) -> decltype(how(u32{})) {
    entered(arena_);
    const SealTurn turn(taken_);
    if (!draft_) throw Error(Code::kStoreError, "this draft was sealed already");
    if (!arena_->owns(fork_generation_))
      throw Error(Code::kStoreError, "this draft was reserved in the parent process, which seals it or discards it");
    if (named != named_)
      throw Error(Code::kStoreError,
                  named_ ? "this draft has an id: seal it" : "this draft is one of weights: publish it");
    const u32 pin = arena_->ledger().take_one(Deadline::slice());
    try {
      const auto result = how(pin);
      if (draft_->is_open()) {
        arena_->ledger().give(pin);
      } else {
        pin_ = pin;
        draft_.reset();
      }
      return result;
    } catch (...) {
      if (draft_->is_open()) arena_->ledger().give(pin);
      throw;
    }
  }

  ArenaPointer arena_;
  std::unique_ptr<Draft> draft_;  // null: sealed or published
  const u64 fork_generation_ = arena_->fork_generation();
  u64 bytes_;
  const bool named_;
  bool taken_ = false;
  u8* payload_ = nullptr;
  u32 pin_ = kNone;
  Id id_;
};

}  // namespace

void bind_reserved(nb::module_& module, nb::class_<Arena>& type) {
  nb::class_<Reserved>(module, "Reserved")
      .def_prop_ro("id", &Reserved::id)
      .def("seal", &Reserved::seal)
      .def("seal_durable", &Reserved::seal_durable)
      .def("publish", &Reserved::publish, nb::arg("name"), nb::arg("keep"), nb::arg("at") = 0)
      .def("publish_durable", &Reserved::publish_durable, nb::arg("name"), nb::arg("keep"))
      .def(
          "payload",
          [](nb::handle self) {  // uint8[bytes] over the block, which stays as long as the array does
            const Reserved& reserved = nb::cast<const Reserved&>(self);
            const npy_intp bytes = static_cast<npy_intp>(reserved.bytes());
            return wrap_array(NPY_UINT8, 1, &bytes, reserved.payload(), nb::borrow(self), true);
          },
          nb::sig("def payload(self) -> numpy.typing.NDArray[numpy.uint8]"));
  type.def(
      "reserve",
      [](const ArenaPointer& a, const nb::bytes& header, u64 payload, nb::handle id, double ttl, bool foreign,
         bool named) {
        return std::make_unique<Reserved>(a, ReserveRequest{header, payload, id, ttl, foreign, named});
      },
      nb::arg("header"), nb::arg("payload"), nb::arg("id").none(), nb::arg("ttl"), nb::arg("foreign") = false,
      nb::arg("named") = true,
      nb::sig("def reserve(self, header: bytes, payload: int, id: bytes | None, ttl: float, foreign: bool = False, "
              "named: bool = True) -> Reserved"));
}

}  // namespace di::py
