package counter

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// OtherForms lists the values of other types that people write, and programs store, for the same key: the text "42" and
// the number, an ObjectId or a UUID and its digits as a text, a date and its RFC 3339.
func OtherForms(key bson.RawValue) []bson.RawValue {
	var forms []any
	switch key.Type { //nolint:exhaustive // no other type has a form that is mistaken for it
	case bson.TypeString:
		forms = formsOfText(key.StringValue())
	case bson.TypeObjectID:
		forms = append(forms, key.ObjectID().Hex())
	case bson.TypeInt32, bson.TypeInt64:
		forms = append(forms, strconv.FormatInt(key.AsInt64(), 10))
	case bson.TypeDouble:
		forms = append(forms, strconv.FormatFloat(key.Double(), 'f', -1, 64))
	case bson.TypeDecimal128:
		forms = append(forms, key.Decimal128().String())
	case bson.TypeBoolean:
		forms = append(forms, strconv.FormatBool(key.Boolean()))
	case bson.TypeDateTime:
		forms = append(forms, key.Time().UTC().Format(time.RFC3339Nano))
	case bson.TypeBinary:
		if kind, data := key.Binary(); len(data) == 16 && (kind == bson.TypeBinaryUUID || kind == bson.TypeBinaryUUIDOld) {
			digits := hex.EncodeToString(data)
			forms = append(forms, strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-"), digits)
		}
	}
	values := make([]bson.RawValue, 0, len(forms))
	for _, form := range forms {
		if kind, data, err := bson.MarshalValue(form); err == nil {
			values = append(values, bson.RawValue{Type: kind, Value: data})
		}
	}
	return values
}

func formsOfText(text string) (forms []any) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		forms = append(forms, n)
	} else if f, err := strconv.ParseFloat(text, 64); err == nil {
		forms = append(forms, f)
	}
	if id, err := bson.ObjectIDFromHex(text); err == nil {
		forms = append(forms, id)
	}
	if b, err := strconv.ParseBool(text); err == nil && len(text) > 1 {
		forms = append(forms, b)
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		forms = append(forms, bson.NewDateTimeFromTime(at))
	}
	if data, err := hex.DecodeString(strings.ReplaceAll(text, "-", "")); err == nil && len(data) == 16 {
		forms = append(forms, bson.Binary{Subtype: bson.TypeBinaryUUID, Data: data}, bson.Binary{Subtype: bson.TypeBinaryUUIDOld, Data: data})
	}
	return forms
}

// KeyArgument writes a key as a shell's argument that ParseKey reads again.
func KeyArgument(key bson.RawValue) string {
	text := ""
	switch key.Type { //nolint:exhaustive // all others are extended JSON
	case bson.TypeString:
		text = key.StringValue()
	case bson.TypeObjectID:
		text = key.ObjectID().Hex()
	}
	if again, err := ParseKey(text); err == nil && again.Type == key.Type && again.Equal(key) && plainWord(text) {
		return text
	}
	document, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: key}}, false, false)
	if err != nil {
		return "'" + key.String() + "'"
	}
	text = strings.TrimSuffix(strings.TrimPrefix(string(document), `{"v":`), "}")
	if plainWord(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// plainWord reports whether a shell takes text as it is.
func plainWord(text string) bool {
	return text != "" && !strings.HasPrefix(text, "-") && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@/+-") == ""
}
